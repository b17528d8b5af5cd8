"""Tensors with something forbidden on both sides.

On a CPU that is an unreadable page: a read or write one byte too far ends the process. On a GPU it is a band of NaN: a
read there spoils the result, and a write there is seen afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "Arena", "arena", "has_memory_format", "poisoned_memory"]

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_SLACK = 0xA5  # what lies between the tensor and the page's other edge, and must still lie there afterwards

# "far" puts the slices of the first dimension 2^31 elements apart, in memory that is reserved but never touched: an
# index held in 32 bits goes astray there.
# "channels_last" is torch's memory format of that name, of four dimensions and of five.
LAYOUTS = ("contiguous", "row_stride", "offset", "transposed", "channels_last", "far")
FAR = 2**31 + 64
_BAND = 4096
_NORESERVE = 0x4000  # MAP_NORESERVE on Linux


def poisoned_memory() -> None:
    """From here on ``torch.empty`` is filled with NaN in this process: poison for gradients, which a kernel allocates.

    What ``torch.use_deterministic_algorithms`` does for torch itself; it loads inductor to tell that too, a second of
    each worker's start.
    """
    torch._C._set_deterministic_algorithms(True, warn_only=True)


class _Region:
    def __init__(self, nbytes: int, *, at_end: bool, sparse: bool) -> None:
        pages = max(1, -(-nbytes // _PAGE))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self.map = mmap.mmap(-1, (pages + 2) * _PAGE, flags=flags)
        self.sparse = sparse
        self.handle = ctypes.c_char.from_buffer(self.map)
        start = ctypes.addressof(self.handle)
        for guard in (start, start + (pages + 1) * _PAGE):
            if _libc.mprotect(guard, _PAGE, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect of a guard page failed")
        slack = pages * _PAGE - nbytes
        self.first, self.size = start + _PAGE, pages * _PAGE
        if not sparse:
            ctypes.memset(self.first, _SLACK, self.size)
        self.address = self.first + (slack if at_end else 0)
        self.nbytes = nbytes
        self.tensor: Tensor | None = None  # what lies there

    def slack_untouched(self) -> bool:
        if self.sparse:
            return True
        before = ctypes.string_at(self.first, self.address - self.first)
        end = self.address + self.nbytes
        after = ctypes.string_at(end, self.first + self.size - end)
        return not (before + self._between() + after).strip(bytes([_SLACK]))

    def _between(self) -> bytes:
        """The memory that the tensor spans, with slack in the place of its elements: what is not slack was written to
        between them."""
        t = self.tensor
        if t is None or t.numel() * t.element_size() == self.nbytes:
            return b""
        held = torch.frombuffer(bytearray(ctypes.string_at(self.address, self.nbytes)), dtype=torch.uint8)
        size = t.element_size()  # its bytes are one dimension more: a byte of slack is no bool, and need be no number
        inside = held.as_strided((*t.shape, size), (*(s * size for s in t.stride()), 1), t.storage_offset() * size)
        inside.fill_(_SLACK)
        return held.numpy().tobytes()

    def close(self) -> None:
        for guard in (self.first - _PAGE, self.first + self.size):
            _libc.mprotect(guard, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
        self.tensor = None
        del self.handle
        self.map.close()


def has_memory_format(shape: Sequence[int]) -> bool:
    """Whether torch has a channels_last of so many dimensions."""
    return len(shape) in (4, 5)


def _strides(shape: tuple[int, ...], layout: str, device: str) -> tuple[tuple[int, ...], int, int]:
    """Strides, offset and elements of storage for one layout of a shape."""
    padded = list(shape)
    if layout == "row_stride" and len(shape) >= 2:
        padded[-1] += 5
    order = list(range(len(shape)))
    if layout == "transposed" and len(shape) >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    if layout == "channels_last" and has_memory_format(shape):
        order.append(order.pop(1))
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= padded[dim]
    if layout == "far" and len(shape) >= 2:
        # On a GPU the memory between is real, so there only the last slice lies that far.
        strides[0] = FAR if device == "cpu" else -(-FAR // max(shape[0] - 1, 1) // 64) * 64
    offset = 1 if layout == "offset" else 0
    used = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    return tuple(strides), offset, offset + used


class _Banded:
    """Memory on a GPU between two bands of one-bits: NaN in every floating-point type, -1 in every integer."""

    def __init__(self, nbytes: int, device: str) -> None:
        self.nbytes = nbytes
        self.memory = torch.empty(nbytes + 2 * _BAND, dtype=torch.uint8, device=device)
        for band in self._bands():
            band.fill_(0xFF)

    def _bands(self) -> tuple[Tensor, Tensor]:
        return self.memory[:_BAND], self.memory[_BAND + self.nbytes :]

    def slack_untouched(self) -> bool:
        return all(bool((band == 0xFF).all()) for band in self._bands())

    def close(self) -> None:
        big = self.nbytes > FAR
        del self.memory
        if big:
            torch.cuda.empty_cache()


def _order_of(tensor: Tensor) -> list[int]:
    """The dimensions in the order in which they lie, the outermost first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


class Arena:
    """Guarded tensors of one case."""

    def __init__(self, *, at_end: bool, device: str = "cpu") -> None:
        self.at_end = at_end
        self.device = device
        self.regions: list[_Region | _Banded] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, layout: str = "contiguous") -> Tensor:
        strides, offset, storage = _strides(shape, layout, self.device)
        if storage - offset == 0:
            return torch.empty(shape, dtype=dtype, device=self.device)
        if self.device != "cpu":
            banded = _Banded(storage * dtype.itemsize, self.device)
            self.regions.append(banded)
            inside = banded.memory[_BAND : _BAND + banded.nbytes].view(dtype)
            return inside.as_strided(shape, strides, inside.storage_offset() + offset)
        region = _Region(storage * dtype.itemsize, at_end=self.at_end, sparse=layout == "far")
        self.regions.append(region)
        buffer = (ctypes.c_char * region.nbytes).from_address(region.address)
        region.tensor = torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides, offset)
        return region.tensor

    def new_poisoned(self, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor | None = None) -> Tensor:
        """An output that nobody has written: NaN, or an absurd integer. It is dense, in the order of ``like``."""
        order = list(range(len(shape))) if like is None else _order_of(like)
        tensor = self._in_order(shape, dtype, order)
        whole = -(2**31) + 7 if dtype.itemsize >= 4 else 0x5A
        nan = float("nan")
        return tensor.fill_(complex(nan, nan) if dtype.is_complex else nan if dtype.is_floating_point else whole)

    def _in_order(self, shape: tuple[int, ...], dtype: torch.dtype, order: list[int]) -> Tensor:
        """A dense tensor whose dimensions lie in this order, the outermost first."""
        return self.empty(tuple(shape[i] for i in order), dtype).permute([order.index(i) for i in range(len(shape))])

    def place(self, value: Any, layout: str = "contiguous") -> Any:
        """A copy of a tensor (or of a list of them) in guarded memory; anything else as it is."""
        if isinstance(value, Tensor):
            order = _order_of(value)
            if layout == "contiguous" and not value.is_contiguous() and value.permute(order).is_contiguous():
                # A case that is about the order of dimensions in memory keeps it.
                return self._in_order(tuple(value.shape), value.dtype, order).copy_(value)
            return self.empty(tuple(value.shape), value.dtype, layout).copy_(value)
        if isinstance(value, (list, tuple)):
            return [self.place(v, layout) for v in value]
        return value

    def slack_untouched(self) -> bool:
        return all(region.slack_untouched() for region in self.regions)


@contextmanager
def arena(*, at_end: bool, device: str = "cpu") -> Iterator[Arena]:
    """An arena whose tensors are gone when the block ends; nothing may keep them.

    ``at_end`` says against which page they lie on the CPU; on a GPU the bands are tight on both sides.
    """
    made = Arena(at_end=at_end, device=device)
    try:
        yield made
    finally:
        for region in made.regions:
            region.close()
