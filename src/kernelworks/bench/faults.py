"""Keeping page faults out of a comparison.

torch has no caching allocator on the CPU: glibc maps every large output afresh and gives it back at once, and a
64 MiB relu then runs at a tenth of the memory's rate. That is a regime of its own (``diagnose`` reports it as
allocation); in a race between kernels it would only hide the kernels. So while arms are timed, glibc is told to keep
what it has: the same as starting the process with MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Iterator

__all__ = ["kept_out", "minor_faults"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
DEFAULT_BYTES = 128 * 1024  # of both, from mallopt(3)
RAISED_BYTES = 1 << 30


def minor_faults() -> int:
    """Page faults of this process that needed no disk, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextlib.contextmanager
def kept_out() -> Iterator[bool]:
    """Inside, freed memory is kept for the next allocation. Yields False where the C library cannot be told so.

    Leaving sets glibc's documented defaults (its dynamic threshold stays off from then on).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    raised = mallopt is not None and all(mallopt(p, RAISED_BYTES) == 1 for p in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))
    try:
        yield raised
    finally:
        if raised and mallopt is not None:
            for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
                mallopt(parameter, DEFAULT_BYTES)
