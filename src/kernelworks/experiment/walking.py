"""Memory for experiments that walk through it, and the C++ functions that do (``walks.cpp``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelworks.machine import machine

__all__ = ["LINE_BYTES", "beyond_caches", "walks"]

LINE_BYTES = 64  # of a cache line, on x86 and on most of ARM
LEAST_BYTES = 64 << 20
MIB = 1 << 20


def walks() -> Any:
    """The library for this machine's widest vectors. Raises BuildError."""
    from kernelworks.build import TARGETS, library

    widest = [name for name in ("scalar", "avx2", "avx512") if TARGETS[name].needs <= machine().features][-1]
    return library(Path(__file__).with_name("walks.cpp"), widest)


def beyond_caches() -> int:
    """Bytes that no cache here holds, and no more than an eighth of the memory."""
    largest = max((size for _, size in machine().cache_bytes), default=0)
    return min(max(LEAST_BYTES, 4 * largest), machine().memory_bytes // 8) // MIB * MIB
