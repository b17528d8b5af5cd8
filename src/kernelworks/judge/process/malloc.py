"""What a process of the judge's frees stays its own, as in one that has run for a while.

glibc gives large tensors back to the system now and then, whatever their kernels are; faulting in anew what one takes
is several times as long as writing to it.
"""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["give_back", "keep_freed"]

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # as malloc.h numbers them


def keep_freed() -> None:
    """From now on, in this process."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def give_back() -> None:
    """What is free now is the system's again."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
