"""Keeping page faults out of a comparison.

torch has no caching allocator on the CPU: glibc maps every large output afresh and gives it back at once, and a
64 MiB relu then runs at a tenth of the memory's rate. That is a regime of its own (``diagnose`` reports it as
allocation); in a race between kernels it would only hide the kernels. So while arms are timed, glibc is told to keep
what it has: the same as starting the process with MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ raised.

glibc adapts both by itself to the blocks that a program frees, up to 32 MiB and 64 MiB, and stops once it is told a
number, which nothing takes back. So that the process is not slower afterwards than it was, it is then left where that
adapting ends; the documented defaults, 128 KiB, would have it map and fault in every larger tensor for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Iterator
from types import TracebackType

__all__ = ["Memory", "kept_out", "minor_faults"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
ADAPTED = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}  # as far as glibc goes by itself
RAISED_BYTES = 1 << 30  # of both; some versions of glibc take no threshold of blocks above what they adapt to


def minor_faults() -> int:
    """Page faults of this process that needed no disk, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Memory:
    """As a context: from ``keep()`` to the end freed memory is kept for the next allocation.

    ``kept`` says whether it was asked for, and the C library can be told so.
    """

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        """Keeps what is freed from here on."""
        self.kept = _told(dict.fromkeys(ADAPTED, RAISED_BYTES)) or self.kept

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.kept:
            _told(ADAPTED)


def _told(thresholds: dict[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    told = [mallopt(p, size) == 1 or mallopt(p, ADAPTED[p]) == 1 for p, size in thresholds.items()]
    return all(told)


@contextlib.contextmanager
def kept_out() -> Iterator[bool]:
    """Inside, freed memory is kept for the next allocation. Yields False where the C library cannot be told so."""
    with Memory() as memory:
        memory.keep()
        yield memory.kept
