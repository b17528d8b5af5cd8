"""The GPUs that kernels are compiled for where there is none, as a table.

A kernel of Triton serves every one of them; CUDA C++ with TMA and warpgroup products is of ``sm_90`` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["GPU_TARGETS", "HOPPER", "GpuTarget", "compiled_for", "is_other_than"]


@dataclass(frozen=True)
class GpuTarget:
    """A compute capability that kernels are compiled for."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int  # the most that a block may ask for
    gpus: str  # for instance


GPU_TARGETS = {
    target.name: target
    for target in (
        GpuTarget("sm_80", (8, 0), 163 * 1024, "A100"),
        GpuTarget("sm_90", (9, 0), 227 * 1024, "H100, H200"),
    )
}
HOPPER = GPU_TARGETS["sm_90"]

_compiling_for: list[tuple[int, int]] = []


@contextmanager
def compiled_for(target: GpuTarget) -> Iterator[None]:
    """Inside, guards answer as on such a GPU if there is none."""
    _compiling_for.append(target.capability)
    try:
        yield
    finally:
        _compiling_for.pop()


def is_other_than(target: GpuTarget) -> bool:
    """Whether the GPU here, or the one that is compiled for, is of another compute capability; not if there is none."""
    have = _compiling_for[-1] if _compiling_for else _capability_here()
    return have is not None and have != target.capability


@functools.cache
def _capability_here() -> tuple[int, int] | None:
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
