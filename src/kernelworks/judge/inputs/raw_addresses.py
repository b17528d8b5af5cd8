"""What a function wrote that was given addresses of its own: of NumPy's arrays, of storages, of tensors that were asked
for theirs long before. Nobody says how long such memory is; what was there before and is not there now says it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

__all__ = ["Window", "addresses_in", "windows_at"]

address = Tensor.data_ptr  # taken before it is watched
LEAST_ADDRESS = 1 << 16
MOST_BYTES = 1 << 20  # of a window of which nothing says where it ends
FIRST_WORDS, GAP_WORDS = 1024, 16  # of four bytes, unchanged at its beginning and on its way: then comes others' memory
HEADER, LEAST_CHUNK, FLAGS = 8, 32, 7  # of glibc's malloc: before its memory stands the size, with flags
LARGE = 1e30  # no number of a kernel's: bits of another kind are read
_Pointer: Any = ctypes._Pointer


def addresses_in(values: Iterable[Any]) -> Iterator[int]:
    """Numbers among arguments that may be addresses, and those of arrays and pointers."""
    for value in values:
        found: Any = None
        if isinstance(value, (list, tuple)):
            yield from addresses_in(value)
        elif isinstance(value, numpy.ndarray):
            found = value.ctypes.data
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            found = value
        elif isinstance(value, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ssize_t)):
            found = value.value
        elif isinstance(value, _Pointer):
            found = ctypes.cast(value, ctypes.c_void_p).value
        elif isinstance(value, ctypes.Array):
            found = ctypes.addressof(value)
        if found is not None and found >= LEAST_ADDRESS:
            yield int(found)


@dataclass
class Window:
    """Memory from an address on, as it was and as it is."""

    now: Tensor  # of bytes
    before: Tensor

    def written_numbers(self) -> Tensor | None:
        """What is another than before, from the address on, as numbers of the kind that its bits look like; None where
        nothing is."""
        changed = (self.now.view(torch.int32) != self.before.view(torch.int32)).nonzero().view(-1)
        if not changed.numel() or int(changed[0]) >= FIRST_WORDS:
            return None
        gaps = (changed.diff() > GAP_WORDS).nonzero().view(-1)
        last = int(changed[int(gaps[0])] if gaps.numel() else changed[-1])
        words = self.now[: 4 * (last + 1)]
        for dtype in (torch.float32, torch.float64):
            some = words[: words.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            if some.numel() and bool((some.abs() < LARGE).all()):
                return some
        return words.view(torch.int32)

    def begins_with(self, value: Tensor) -> bool:
        """Whether what was there before is what a tensor holds now."""
        its = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return its.numel() <= self.before.numel() and torch.equal(self.before[: its.numel()], its)


def _writable() -> list[tuple[int, int]]:
    """Ranges of this process's memory that it may write to and that are no device's."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if rights.startswith("rw") and not (path and path[0].startswith(("/dev/", "[stack", "/usr/"))):
            low, high = (int(one, 16) for one in addresses.split("-"))
            found.append((low, high))
    return found


def _count(at: int, low: int, high: int) -> int:
    """Bytes from an address on: to the end of what malloc gave, where it looks like that."""
    most = min(high - at, MOST_BYTES)
    if at % 16 == 0 and at - HEADER >= low:
        size = ctypes.c_size_t.from_address(at - HEADER).value & ~FLAGS
        if LEAST_CHUNK <= size <= high - at + 2 * HEADER and size % 16 == 0:
            most = min(size - HEADER, high - at)
    return most // 8 * 8


def _copied(memory: Tensor) -> Tensor:
    """A copy in pages of its own: in malloc's memory it would lie among what is looked at."""
    return torch.frombuffer(mmap.mmap(-1, memory.numel()), dtype=torch.uint8).copy_(memory)


def windows_at(addresses: Iterable[int], known: Iterable[Tensor]) -> list[Window]:
    """The memory at addresses that lie in none of the tensors that are known anyway."""
    held = [(address(t), address(t) + t.nbytes) for t in known]
    wanted = {at for at in addresses if not any(low <= at < high for low, high in held)}
    found = []
    ranges = _writable() if wanted else []
    for at in sorted(wanted):
        count = next((_count(at, low, high) for low, high in ranges if low <= at < high), 0)
        if count:
            now = torch.frombuffer((ctypes.c_char * count).from_address(at), dtype=torch.uint8)
            found.append(Window(now, _copied(now)))
    return found
