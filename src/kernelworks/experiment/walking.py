"""Memory for experiments that walk through it, and the C++ functions that do (``walks.cpp``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelworks.machine import machine

__all__ = ["LINE_BYTES", "beyond_caches", "doubled_sizes", "tiles", "walks"]

LINE_BYTES = 64  # of a cache line, on x86 and on most of ARM
LEAST_BYTES = 64 << 20
MIB = 1 << 20


def _library(name: str) -> Any:
    from kernelworks.build import TARGETS, library

    widest = [name for name in ("scalar", "avx2", "avx512") if TARGETS[name].needs <= machine().features][-1]
    return library(Path(__file__).with_name(name), widest)


def walks() -> Any:
    """``walks.cpp`` for this machine's widest vectors. Raises BuildError."""
    return _library("walks.cpp")


def tiles() -> Any:
    """``tiles.cpp``, the same way."""
    return _library("tiles.cpp")


def beyond_caches() -> int:
    """Bytes that no cache here holds, and no more than an eighth of the memory."""
    largest = max((size for _, size in machine().cache_bytes), default=0)
    return min(max(LEAST_BYTES, 4 * largest), machine().memory_bytes // 8) // MIB * MIB


def doubled_sizes(least: int) -> tuple[int, ...]:
    """``least`` bytes, twice as many, and so on, up to what no cache holds."""
    sizes = [least]
    while 2 * sizes[-1] <= beyond_caches():
        sizes.append(2 * sizes[-1])
    return tuple(sizes)
