"""A small Chrome trace, and files to hold it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["made", "written"]


def made(*extra: dict[str, Any], **head: Any) -> dict[str, Any]:
    """A hundred microseconds: an op launches a kernel late, the next one is queued, then the host waits."""

    def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    return {**head, "traceEvents": [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("cpu_op", "aten::mm", 10, 20),
        event("cuda_runtime", "cudaLaunchKernel", 15, 10, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 26, 2, correlation=2),
        event("kernel", "gemm", 28, 12, tid=7, correlation=1, device=0, stream=7),
        event("kernel", "gemm", 45, 15, tid=7, correlation=2, device=0, stream=7),
        event("gpu_memcpy", "Memcpy DtoH", 50, 20, tid=8, correlation=3, device=0, stream=8),
        event("cuda_runtime", "cudaStreamSynchronize", 80, 10),
        *extra,
    ]}  # fmt: skip


def written(folder: Path, content: Any, name: str = "it.json") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
