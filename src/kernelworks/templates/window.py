"""The window template: each element of the output is made of a window of a picture [B, C, H, W], which slides.

What ops of this shape share: how windows lie (``Windows``), which memory format their results have (``like_picture``),
the taps of all windows for a definition (``taps``), and the shapes that kernels fail on (``SHAPES``): pictures of one
row, windows as large as the picture or that reach over its ends, strides that leave some of it out, dilation, an empty
batch, both memory formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract.int_pair import Pair, pair

__all__ = ["KINDS", "SHAPES", "Slide", "Windows", "in_format", "is_channels_last", "like_picture"]


def is_channels_last(x: Tensor) -> bool:
    """Whether a picture lies in torch's channels_last, and in no other order too."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def like_picture(x: Tensor, shape: tuple[int, ...], *others: Tensor) -> Tensor:
    """An output for a picture: channels_last if that is, or a filter is, as torch's convolutions have it."""
    last = any(is_channels_last(t) for t in (x, *others))
    return x.new_empty(shape).to(memory_format=torch.channels_last) if last else x.new_empty(shape)


def in_format(x: Tensor, channels_last: bool) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@dataclass(frozen=True)
class Windows:
    """Windows of a size, each ``stride`` on from the one before, in a picture with ``padding`` on either side; their
    elements are ``dilation`` apart."""

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @staticmethod
    def of(size: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
        """Of what a call says, ints or pairs."""
        return Windows(pair(size), pair(stride), pair(padding), pair(dilation))

    def reach(self, dim: int) -> int:
        """From a window's first element to behind its last."""
        return (self.size[dim] - 1) * self.dilation[dim] + 1

    def counts(self, picture: tuple[int, int]) -> Pair:
        """How many windows there are along each dimension of a picture."""
        found = [
            (picture[dim] + 2 * self.padding[dim] - self.reach(dim)) // self.stride[dim] + 1 for dim in (0, 1)
        ]  # fmt: skip
        return found[0], found[1]

    def need_room(self, name: str, picture: tuple[int, int]) -> None:
        """Raises ValueError unless a window fits into the picture and what is around it."""
        for dim, which in ((0, "high"), (1, "wide")):
            room = picture[dim] + 2 * self.padding[dim]
            if room < self.reach(dim):
                raise ValueError(
                    f"{name} must be at least {self.reach(dim)} {which} with its padding, as the window is; got {room}"
                )

    def taps(self, x: Tensor, fill: float = 0.0) -> Iterator[tuple[int, int, Tensor]]:
        """For each place of a window what stands there in all windows: row and column in the window, [B, C, OH, OW]."""
        (top, left), (down, right) = self.padding, self.stride
        padded = F.pad(x, (left, left, top, top), value=fill)
        rows, columns = self.counts((x.shape[2], x.shape[3]))
        for i in range(self.size[0]):
            for j in range(self.size[1]):
                first, second = i * self.dilation[0], j * self.dilation[1]
                part = padded[:, :, first : first + (rows - 1) * down + 1 : down]
                yield i, j, part[..., second : second + (columns - 1) * right + 1 : right]


# Kinds of a picture's values, and whether derivatives are compared there.
KINDS = {"large_mean": True, "tiny": True, "constant": True, "zeros": True} | dict.fromkeys(
    ("huge", "subnormal", "inf", "negative_inf", "nan"), False
)


@dataclass(frozen=True)
class Slide:
    """One shape that kernels are tried at: the picture's batch, rows and columns, and how windows lie in it."""

    picture: tuple[int, int, int]
    size: Any = 3
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    channels_last: bool = False

    def __str__(self) -> str:
        B, H, W = self.picture
        said = [f"B={B} {H}x{W}", f"window {self.size}"]
        said += [f"{n} {v}" for n in ("stride", "padding", "dilation") if (v := getattr(self, n)) not in (0, 1)]
        return ", ".join(said + ["channels last"] * self.channels_last)


_SHAPES = (
    Slide((2, 7, 9), padding=1),
    Slide((1, 2, 2), 2),  # one window is all
    Slide((2, 2, 2), 3, padding=1),
    Slide((2, 1, 37), (1, 3)),  # one row
    Slide((1, 1, 5), 3, padding=1),
    Slide((1, 33, 1), (3, 1), padding=(1, 0)),  # one column
    Slide((2, 8, 8), 3, stride=2, padding=1),  # the last column starts no window
    Slide((1, 9, 10), 2, stride=3),  # some of it is left out
    Slide((1, 11, 12), (3, 2), stride=(2, 1), padding=(0, 1)),
    Slide((1, 6, 6), 1, stride=2),
    Slide((2, 5, 67), 1),
    Slide((1, 13, 14), 3, padding=2, dilation=2),
    Slide((1, 12, 19), (2, 3), dilation=(3, 4), padding=(1, 4), stride=(1, 2)),
    Slide((1, 4, 4), 4, padding=3),  # windows that hold one element
    Slide((1, 17, 130), 3, padding=1),
    Slide((0, 5, 5), 3),
)
SHAPES = tuple(
    Slide(s.picture, s.size, s.stride, s.padding, s.dilation, last) for s in _SHAPES for last in (False, True)
)  # fmt: skip
