"""Other values for a problem's inputs than those that it gives: in their range, and with what every draw of them has;
and other weights than the ones and zeros that layers begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["DRAWS", "like_given", "no_ones_and_zeros"]

CLOSE = 1e-4  # of a sum, within which all sums of lines are one
FEW, SEEN = 16, 1024  # values that an input has among so many of its elements: signs, masks, classes

Draw = Callable[[Tensor, torch.Generator], Tensor]


def _uneven(value: Tensor, generator: torch.Generator) -> Tensor:
    """In the range that was given, most of it near one end."""
    low, high = value.min(), value.max()
    return low + (high - low) * torch.rand(value.shape, generator=generator) ** 3


def _outliers(value: Tensor, generator: torch.Generator) -> Tensor:
    """All near the middle but for a few elements, which are the range's ends."""
    low, high = value.min(), value.max()
    middle = (low + high) / 2 + (high - low) * 0.01 * (torch.rand(value.shape, generator=generator) - 0.5)
    which = torch.rand(value.shape, generator=generator)
    return torch.where(which < 0.01, low, torch.where(which > 0.99, high, middle))


def _apart(value: Tensor, generator: torch.Generator) -> Tensor:
    """Each slice of the first dimension in a part of the range of its own: no two have one mean or one spread."""
    if value.dim() == 0:
        return value.clone()
    low, high = value.min(), value.max()
    shape = (value.shape[0], *(1 for _ in value.shape[1:]))
    at, size = (torch.rand(shape, generator=generator) for _ in range(2))
    return low + (high - low) * (at * (1 - size) + size * torch.rand(value.shape, generator=generator))


# Every draw keeps to the range of what the problem gives: a problem whose inputs are probabilities stays one.
DRAWS: dict[str, Draw | None] = {"given": None, "uneven": _uneven, "outliers": _outliers, "apart": _apart}


def like_given(value: Tensor, other: Tensor, how: Draw, generator: torch.Generator) -> Tensor:
    """Drawn anew, with what ``value`` has in common with another one that the problem gives: elements that are the same
    in both (the zeros of a triangle), symmetry, lines in order, lines of one sum; and itself where it has few values (a
    mask). A candidate may rely on these."""
    given = value.float()
    if given.numel() <= FEW or given.reshape(-1)[:SEEN].unique().numel() <= FEW:
        return value
    drawn = how(given, generator)
    if value.dim() > 1 and value.shape[-1] == value.shape[-2] and torch.equal(given, given.mT):
        drawn = (drawn + drawn.mT) / 2
    if value.dim() and value.shape[-1] > 2 and bool((given.diff() >= 0).all()):
        drawn = drawn.sort(-1).values
    elif value.dim() and value.shape[-1] > 2 and bool((given >= 0).all()):
        sums = given.sum(-1, keepdim=True)
        if bool(((sums - sums.mean()).abs() <= CLOSE * sums.mean()).all()):
            drawn = drawn * (sums / drawn.sum(-1, keepdim=True))
    if value.shape == other.shape:
        drawn = torch.where(value == other, given, drawn)
    return drawn.to(value.dtype).contiguous()


@contextlib.contextmanager
def no_ones_and_zeros() -> Iterator[list[int]]:
    """While modules are made, layers that begin with ones and zeros (norms) begin with numbers about those, drawn from
    torch's generator: the same in every process that makes the same layers. Yields how many elements were drawn."""
    init: Any = torch.nn.init
    drawn = [0]
    before = init.ones_, init.zeros_

    def about(low: float) -> Callable[[Tensor], Tensor]:
        def fill(tensor: Tensor) -> Tensor:
            drawn[0] += tensor.numel()
            with torch.no_grad():
                return tensor.uniform_(low, low + 1.0)

        return fill

    init.ones_, init.zeros_ = about(0.5), about(-0.5)
    try:
        yield drawn
    finally:
        init.ones_, init.zeros_ = before
