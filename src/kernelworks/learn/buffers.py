"""Memory that a learner's function is handed: unreadable pages on both sides, and a pattern where nobody may write.

An array lies against the page behind it in one call, and against the page before it in the next. So one element too far
in either direction ends the call, and the address says which element of which array it was.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelworks.learn.case import Array, Case, Output, Rows, State

__all__ = ["Buffer", "place_case"]

PAGE = mmap.PAGESIZE
GUARD_PAGES = 16  # on either side: an index that is a few rows too far still meets one
NONE, READ_WRITE = 0, 3
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

# What each byte of an output holds before a call: NaN of every float in the first, a number of middle size in the
# second (12.08 of float32, 65 of int8), to which something can be added. What holds the one after the one call and the
# other after the other was never written.
PATTERNS = (0xFF, 0x41)


@dataclass
class Buffer:
    """One array of a call. ``view`` is the array, with the strides that the function is told of."""

    name: str
    map: mmap.mmap
    handle: Any
    first: int  # address of the first page that may be touched
    pages: int
    address: int
    nbytes: int
    view: Array
    is_output: bool
    gap: int
    gap_pattern: int
    before: Array | None = None  # of an input: what it held

    def describe(self) -> dict[str, Any]:
        """What is said of it before a call, so that an address has a name if the process ends."""
        return {
            "name": self.name, "address": self.address, "nbytes": self.nbytes, "size": self.view.itemsize,
            "shape": list(self.view.shape), "gap": self.gap, "output": self.is_output, "pages": self.pages,
            "first": self.first,
        }  # fmt: skip

    def has_kept_gaps(self) -> bool:
        """Whether what lies between its rows is as it was."""
        size = self.view.itemsize
        held = bytearray(ctypes.string_at(self.address, self.nbytes))
        columns, step = self.view.shape[-1] * size, (self.view.shape[-1] + self.gap) * size
        for start in range(0, len(held), step):
            held[start : start + columns] = bytes([self.gap_pattern]) * len(held[start : start + columns])
        return not held.strip(bytes([self.gap_pattern]))

    def close(self) -> None:
        guard = GUARD_PAGES * PAGE
        for start in (self.first - guard, self.first + self.pages * PAGE):
            _libc.mprotect(start, guard, READ_WRITE)
        del self.view
        self.handle = None
        self.map.close()


def _memory(nbytes: int, *, at_end: bool, align: int) -> tuple[mmap.mmap, Any, int, int, int]:
    pages = max(1, -(-nbytes // PAGE))
    found = mmap.mmap(-1, (pages + 2 * GUARD_PAGES) * PAGE)
    handle = ctypes.c_char.from_buffer(found)
    start = ctypes.addressof(handle)
    first = start + GUARD_PAGES * PAGE
    for guard in (start, first + pages * PAGE):
        if _libc.mprotect(guard, GUARD_PAGES * PAGE, NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect of a guard page failed")
    slack = (pages * PAGE - nbytes) // align * align if at_end else 0
    return found, handle, first, pages, first + slack


def _buffer(name: str, value: Any, stale: Array | None, *, at_end: bool, pattern: int, gap_pattern: int) -> Buffer:
    """An array in guarded memory, filled with the pattern, and then with what it holds if it is read, or ``stale``."""
    if isinstance(value, Output):
        shape = (value.shape,) if isinstance(value.shape, int) else value.shape
        dtype, gap, held = np.dtype(value.dtype), value.gap, None
    else:
        held = value.array if isinstance(value, (Rows, State)) else value
        gap = getattr(value, "gap", 0)
        shape, dtype = held.shape, held.dtype
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    step = (shape[-1] if shape else 1) + gap
    # The last row ends where its elements end: a gap behind it would hide a read that goes too far.
    nbytes = max(0, rows * step - gap) * dtype.itemsize
    memory, handle, first, pages, address = _memory(nbytes, at_end=at_end, align=dtype.itemsize)
    ctypes.memset(first, gap_pattern, pages * PAGE)
    span: Any = (ctypes.c_char * nbytes).from_address(address)
    flat: Array = np.frombuffer(span, dtype=dtype) if nbytes else np.empty(0, dtype)
    strides = [dtype.itemsize]
    for size in reversed((*shape[1:-1], step) if len(shape) > 1 else ()):
        strides.insert(0, strides[0] * size)
    view: Array = np.lib.stride_tricks.as_strided(flat, shape, strides) if nbytes else np.empty(shape, dtype)
    if held is not None:
        view[...] = held
    elif nbytes:
        view[...] = np.frombuffer(bytes([pattern]) * dtype.itemsize, dtype=dtype)[0]
        if stale is not None:
            view[...] = stale
    is_output = isinstance(value, (Output, State))
    return Buffer(name, memory, handle, first, pages, address, nbytes, view, is_output, gap, gap_pattern, held)


def place_case(
    case: Case, *, at_end: bool, pattern: int, gap_pattern: int = PATTERNS[0], stale: Mapping[str, Array] | None = None
) -> dict[str, Buffer]:
    """Every array of a case in guarded memory, by name; outputs filled with one pattern, gaps with another. ``stale``:
    what some outputs hold in the place of the pattern."""
    arrays = {n: v for n, v in case.arguments.items() if isinstance(v, (np.ndarray, Output, Rows, State))}
    return {
        name: _buffer(name, value, (stale or {}).get(name), at_end=at_end, pattern=pattern, gap_pattern=gap_pattern)
        for name, value in arrays.items()
    }
