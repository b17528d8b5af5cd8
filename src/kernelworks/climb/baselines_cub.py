"""CUB's sum as a baseline: compiled by the CUDA toolkit's own compiler, which its users have, and called through
ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import BuildError
from kernelworks.build.cache import entry

__all__ = ["cub_sum"]

Inputs = dict[str, Tensor]
FLAGS = ("-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler=-fPIC")
TIMEOUT_S = 300
SOURCE = """
#include <cub/device/device_reduce.cuh>
// As CUB has it: without scratch it says how many bytes it wants.
extern "C" int sum(void* scratch, size_t* bytes, const float* x, float* y, long long n, void* stream) {
    return cub::DeviceReduce::Sum(scratch, *bytes, x, y, n, static_cast<cudaStream_t>(stream));
}
"""
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


def _compile(tool: str, output: Path) -> None:
    source = output.with_name(f"{output.name}.cu")
    source.write_text(SOURCE, encoding="utf-8")
    command = [tool, *FLAGS, "-o", str(output), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    source.unlink()
    if done.returncode:
        raise BuildError(f"{tool} could not compile CUB's sum:\n{(done.stdout + done.stderr).strip()[:4000]}")


@functools.cache
def _library() -> Any:
    """None where there is no CUDA toolkit, or none that compiles it. Cost: 20 s the first time on a machine."""
    tool = shutil.which("nvcc")
    if tool is None:
        return None
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    version = said.splitlines()[-1] if said else ""
    key = hashlib.sha256("\n".join((SOURCE, *FLAGS, version)).encode()).hexdigest()[:20]
    try:
        path = entry(f"cub-sum-{key}", ".so", functools.partial(_compile, tool), {"source": "CUB", "nvcc": version})
        library = ctypes.CDLL(str(path))
    except (BuildError, OSError, subprocess.TimeoutExpired):
        return None
    pointer = ctypes.c_void_p
    library.sum.argtypes = [pointer, ctypes.POINTER(ctypes.c_size_t), pointer, pointer, ctypes.c_longlong, pointer]
    library.sum.restype = ctypes.c_int
    return library


def cub_sum(given: Inputs, threads: int) -> Callable[[], Tensor] | None:
    """``cub::DeviceReduce::Sum`` of a GPU's float32 ``x``, its scratch taken once, outside the timing."""
    library = _library()
    if library is None:
        return None
    x, bytes_ = given["x"], ctypes.c_size_t()
    out, device = x.new_empty(1), x.device.index or 0
    if library.sum(None, ctypes.byref(bytes_), x.data_ptr(), out.data_ptr(), x.numel(), None):
        return None
    scratch = torch.empty(bytes_.value, dtype=torch.uint8, device=x.device)

    def run() -> Tensor:
        status = library.sum(
            scratch.data_ptr(), ctypes.byref(bytes_), x.data_ptr(), out.data_ptr(), x.numel(), _stream(device)
        )
        if status:
            raise RuntimeError(f"CUB's sum could not be launched: CUDA error {status}")
        return out

    return run
