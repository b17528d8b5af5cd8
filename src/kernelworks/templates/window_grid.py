"""How windows lie in a line, a picture or a volume: the window template for any number of dimensions.

``Grid`` says how many windows there are and what stands at each place of a window, of which a definition is a sum or a
maximum. ``places`` gives the grids that kernels fail on, of one to three dimensions: one element, windows as large as
what they slide over or that reach over its ends, strides that leave some of it out, dilation, a last window that
``ceil_mode`` adds, an empty batch. Kernels take three dimensions, of which the first ones may have one element
(``volume``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract.int_tuple import ints

__all__ = ["DIMENSIONS", "Grid", "Place", "in_format", "is_channels_last", "memory_format", "places", "volume"]

DIMENSIONS = {1: "L", 2: "H W", 3: "D H W"}  # their names
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
MOST = 3  # dimensions that kernels know


def is_channels_last(x: Tensor) -> bool:
    """Whether channels lie side by side, as torch's channels_last has them, and in no other order too."""
    form = FORMATS.get(x.dim())
    return form is not None and x.is_contiguous(memory_format=form) and not x.is_contiguous()


def memory_format(x: Tensor) -> torch.memory_format:
    """The format that a result of x has."""
    return FORMATS[x.dim()] if is_channels_last(x) else torch.contiguous_format


def in_format(x: Tensor, channels_last: bool) -> Tensor:
    """x with channels side by side, where torch has a format for that."""
    return x.contiguous(memory_format=FORMATS[x.dim()]) if channels_last and x.dim() in FORMATS else x


def volume(x: Tensor) -> Tensor:
    """[B, C, ...] as [B, C, D, H, W]."""
    for _ in range(MOST + 2 - x.dim()):
        x = x.unsqueeze(2)
    return x


@dataclass(frozen=True)
class Grid:
    """Windows of a size, each ``stride`` on from the one before, in something with ``padding`` on either side; their
    elements are ``dilation`` apart. With ``ceil_mode`` a last window may reach over the end, if it does not begin
    there."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    @staticmethod
    def of(dims: int, size: Any, stride: Any, padding: Any, dilation: Any = 1, ceil_mode: bool = False) -> Grid:
        """Of what a call says: ints, or one for each dimension; without a stride windows lie side by side."""
        stride = size if stride is None else stride
        said = tuple(ints(value, dims) for value in (size, stride, padding, dilation))
        return Grid(said[0], said[1], said[2], said[3], ceil_mode)

    def reach(self, dim: int) -> int:
        """From a window's first element to behind its last."""
        return (self.size[dim] - 1) * self.dilation[dim] + 1

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many windows there are along each dimension."""
        return tuple(self._count(dim, n) for dim, n in enumerate(sizes))

    def _count(self, dim: int, n: int) -> int:
        stride, padding = self.stride[dim], self.padding[dim]
        room = n + 2 * padding - self.reach(dim)
        if not self.ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - ((count - 1) * stride >= n + padding)  # a window that begins behind the end is none

    def need_room(self, name: str, sizes: Sequence[int]) -> None:
        """Raises ValueError unless a window fits, and each one holds an element."""
        for dim, n in enumerate(sizes):
            room = n + 2 * self.padding[dim]
            if room < self.reach(dim):
                raise ValueError(
                    f"{name} must be at least {self.reach(dim)} long with its padding in dimension {dim + 2}, as the "
                    f"window is; got {room}"
                )
            for begin in range(-self.padding[dim], 0, self.stride[dim]):
                first = begin % self.dilation[dim]
                if first >= n or first > begin + self.reach(dim) - 1:
                    raise ValueError(
                        f"{name} must have an element in each window, got {n} in dimension {dim + 2} with padding "
                        f"{self.padding[dim]} and dilation {self.dilation[dim]}"
                    )

    def taps(self, x: Tensor, fill: float = 0.0) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """For each place of a window what stands there in all windows: the place, and [B, C, windows...]."""
        sizes = tuple(x.shape[2:])
        counts, around = self.counts(sizes), []
        for dim, n in reversed(tuple(enumerate(sizes))):
            last = (counts[dim] - 1) * self.stride[dim] + self.reach(dim)
            around += [self.padding[dim], max(0, last - n - self.padding[dim])]
        padded = F.pad(x, around, value=fill)
        for place in itertools.product(*map(range, self.size)):
            part = padded
            for dim, (i, count) in enumerate(zip(place, counts, strict=True)):
                first, stride = i * self.dilation[dim], self.stride[dim]
                part = part[(slice(None),) * (dim + 2) + (slice(first, first + (count - 1) * stride + 1, stride),)]
            yield place, part

    def spread(self, flow: Tensor, sizes: Sequence[int]) -> Tensor:
        """What ``taps`` of zeros with these sizes would get back: of each window to all of its elements."""
        with torch.enable_grad():
            x = flow.new_zeros((*flow.shape[:2], *sizes)).requires_grad_()
            total: Any = sum(part for _, part in self.taps(x))
            (made,) = torch.autograd.grad(total, x, flow, create_graph=flow.requires_grad)
        found: Tensor = made
        return found

    @property
    def numbers(self) -> tuple[int, ...]:
        """Size, stride, padding and dilation along three dimensions, as kernels take them."""
        return tuple(n for own, rest in ((self.size, 1), (self.stride, 1), (self.padding, 0), (self.dilation, 1))
                     for n in (*(rest,) * (MOST - len(own)), *own))  # fmt: skip


# ---------------------------------------------------------------- what kernels fail on


@dataclass(frozen=True)
class Place:
    """One shape that kernels are tried at: the batch, sizes of what windows slide over, and how they lie in it."""

    batch: int
    sizes: tuple[int, ...]
    grid: Grid
    channels_last: bool = False

    def __str__(self) -> str:
        grid, many = self.grid, "x".join(map(str, self.sizes))
        said = [f"B={self.batch} {many}", f"window {'x'.join(map(str, grid.size))}"]
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)):
            values = getattr(grid, name)
            said += [f"{name} {'x'.join(map(str, values))}"] * any(n != usual for n in values)
        return ", ".join(said + ["ceil"] * grid.ceil_mode + ["channels last"] * self.channels_last)


# Batch; along the last dimension: elements, window, stride, padding, dilation; ceil_mode.
_LAST = (
    (2, (9, 3, 1, 1, 1), False),
    (1, (2, 2, 1, 0, 1), False),  # one window is all
    (2, (1, 1, 1, 0, 1), False),
    (1, (5, 3, 1, 1, 1), True),
    (2, (37, 3, 1, 0, 1), False),
    (1, (8, 3, 2, 1, 1), False),  # the last element starts no window
    (1, (10, 2, 3, 0, 1), False),  # some of it is left out
    (2, (8, 3, 2, 0, 1), True),  # the last window reaches over the end
    (1, (7, 2, 2, 1, 1), True),
    (1, (10, 3, 4, 1, 1), True),
    (1, (6, 1, 2, 0, 1), False),
    (1, (19, 3, 1, 1, 2), False),
    (1, (23, 4, 3, 2, 3), True),
    (1, (1, 3, 1, 1, 1), False),  # a window that is larger than what it slides over
    (1, (131, 5, 1, 2, 1), False),
    (0, (5, 3, 1, 0, 1), False),
    (1, (66, 2, 2, 0, 1), False),
)
# Along each dimension before: the same.
_OTHERS = (
    (3, 3, 1, 1, 1), (2, 2, 2, 0, 1), (1, 1, 1, 0, 1), (4, 3, 1, 1, 1), (1, 3, 2, 1, 1), (5, 2, 2, 1, 1),
    (7, 2, 1, 0, 3), (3, 1, 2, 0, 1),
)  # fmt: skip


def places(dims: int, dilated: bool = True) -> Iterator[Place]:
    """What kernels fail on, in so many dimensions; every second one with channels side by side."""
    for i, (batch, last, ceil_mode) in enumerate(_LAST):
        ways = [*(_OTHERS[(i + 3 * j) % len(_OTHERS)] for j in range(dims - 1)), last]
        if not dilated:
            ways = [(n, size, stride, padding, 1) for n, size, stride, padding, _ in ways]
        n, size, stride, padding, dilation = zip(*ways, strict=True)
        yield Place(batch, n, Grid(size, stride, padding, dilation, ceil_mode), dims > 1 and i % 2 > 0)
