"""Other values for a problem's inputs than those that it gives, with what every draw of them has: in their range, and
beyond it where the problem holds there; and other weights than the ones and zeros that layers begin with."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "BEYOND",
    "DRAWS",
    "FAR_BEYOND",
    "FAR_HERE",
    "FAR_THERE",
    "LOST",
    "OUTSIDE",
    "SMALL",
    "about_constants",
    "like_given",
    "no_ones_and_zeros",
]

CLOSE = 1e-4  # of a sum, within which all sums of lines are one
FEW, SEEN = 16, 1024  # values that an input has among so many of its elements: signs, masks, classes
REACH = 8.0  # beyond where functions of torch's bend (a ReLU at 0, others at 1, 3 and 6), and where no float overflows
FAR = 100.0  # where an exponential of a float32 overflows
FAR_SLICES, FAR_ELEMENTS = 1 / 8, 1 / 1024  # of an input of which only parts are so large
NEAR = 2.0**-10  # of the range that was given: squares are far below any epsilon there

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
    """Each slice of a dimension that is drawn in a part of the range of its own: no two have one mean or one spread,
    and that of some is next to nothing."""
    if value.dim() == 0:
        return value.clone()
    low, high = value.min(), value.max()
    along = int(torch.randint(value.dim(), (), generator=generator))
    shape = tuple(count if dim == along else 1 for dim, count in enumerate(value.shape))
    at, size = (torch.rand(shape, generator=generator) for _ in range(2))
    size = size**4
    return low + (high - low) * (at * (1 - size) + size * torch.rand(value.shape, generator=generator))


def _small(value: Tensor, generator: torch.Generator) -> Tensor:
    """In the range that was given, next to its zero or its end that is nearest to that."""
    low, high = value.min(), value.max()
    nearest = low.clamp(min=0) + high.clamp(max=0)
    return nearest + NEAR * (low - nearest + (high - low) * torch.rand(value.shape, generator=generator))


def _beyond(value: Tensor, generator: torch.Generator) -> Tensor:
    """Of both signs, as far from zero as what was given and as the bends of functions: on what is drawn from 0 to 1 a
    ReLU does nothing, and a kernel without it is right."""
    reach = torch.clamp(value.abs().max(), min=REACH)
    return reach * (2 * torch.rand(value.shape, generator=generator) - 1)


def _far(value: Tensor, generator: torch.Generator) -> Tensor:
    """Of both signs and so large that exponentials overflow."""
    return FAR * (2 * torch.rand(value.shape, generator=generator) - 1)


def _far_slices(value: Tensor, generator: torch.Generator) -> Tensor:
    """As given, but for some slices of a dimension that is drawn, which are far: whoever looks at a part of an input
    knows nothing of the rest."""
    along = int(torch.randint(value.dim(), (), generator=generator))
    slices = torch.rand(value.shape[along], generator=generator) < FAR_SLICES
    slices[int(torch.randint(value.shape[along], (), generator=generator))] = True
    shape = [count if dim == along else 1 for dim, count in enumerate(value.shape)]
    return torch.where(slices.view(shape), _far(value, generator), value)


def _far_elements(value: Tensor, generator: torch.Generator) -> Tensor:
    """As given, but for a few elements, which are far; one is as far as any on either side of zero."""
    few = torch.rand(value.shape, generator=generator) < FAR_ELEMENTS
    found = torch.where(few, _far(value, generator), value).contiguous()
    ends = torch.randperm(value.numel(), generator=generator)[:2]
    found.view(-1)[ends] = torch.tensor([FAR, -FAR])
    return found


# All but four keep to the range of what the problem gives. Where the reference does not hold beyond it (a root, a
# logarithm, a target that is a probability) that draw is left out. A formula may lose digits there that it has within
# it (a sigmoid that is made of a tanh): what it is off by counts there from such a share of the largest answer on.
BEYOND, FAR_BEYOND, FAR_HERE, FAR_THERE = "beyond", "far beyond", "far elements", "far slices"
SMALL, LOST = "small", 2.0**-10
DRAWS: dict[str, Draw | None] = {
    "given": None, BEYOND: _beyond, FAR_BEYOND: _far, FAR_HERE: _far_elements,
    FAR_THERE: _far_slices, SMALL: _small,
    "apart": _apart, "uneven": _uneven, "outliers": _outliers,
}  # fmt: skip
OUTSIDE = (BEYOND, FAR_BEYOND, FAR_HERE, FAR_THERE)  # the range that is given


def _sums(given: Tensor) -> Tensor | None:
    """Of its lines, where none of them has a negative element and all have one sum: probabilities."""
    if not given.dim() or given.shape[-1] <= 2 or bool((given < 0).any()):
        return None
    sums = given.sum(-1, keepdim=True)
    return sums if bool(((sums - sums.mean()).abs() <= CLOSE * sums.mean()).all()) else None


def like_given(value: Tensor, other: Tensor, how: Draw, generator: torch.Generator) -> Tensor:
    """Drawn anew, with what ``value`` has in common with another one that the problem gives: elements that are the same
    in both (the zeros of a triangle), symmetry, lines in order, lines of one sum; and itself where it has few values (a
    mask). A candidate may rely on these."""
    given = value.float()
    if given.numel() <= FEW or given.reshape(-1)[:SEEN].unique().numel() <= FEW:
        return value
    shares = _sums(given)
    drawn = (_uneven if shares is not None and how in (_beyond, _far, _far_elements, _far_slices, _small) else how)(
        given, generator
    )
    if value.dim() > 1 and value.shape[-1] == value.shape[-2] and torch.equal(given, given.mT):
        drawn = (drawn + drawn.mT) / 2
    if value.dim() and value.shape[-1] > 2 and bool((given.diff() >= 0).all()):
        drawn = drawn.sort(-1).values
    elif shares is not None:
        drawn = drawn * (shares / drawn.sum(-1, keepdim=True))
    if value.shape == other.shape:
        drawn = torch.where(value == other, given, drawn)
    return drawn.to(value.dtype).contiguous()


def _about(value: float, like: Tensor, seed: int) -> Tensor:
    """Numbers about the one that a weight begins with everywhere: the same for all of as many elements that begin so,
    whatever dimensions of one they have, in every process with the same seed, whatever else was drawn there."""
    own = zlib.crc32(repr((seed, like.numel(), float(value))).encode())
    drawn = torch.rand(like.numel(), generator=torch.Generator().manual_seed(own)) + (value - 0.5)
    return drawn.to(like.dtype).view(like.shape)


def about_constants(module: torch.nn.Module, seed: int) -> int:
    """Gives every weight that is one number everywhere numbers about it. How many elements have such now."""
    count = 0
    with torch.no_grad():
        for weight in module.parameters():
            if weight.numel() < 2 or not weight.is_floating_point():
                continue
            if bool((weight == weight.reshape(-1)[0]).all()):
                weight.copy_(_about(float(weight.reshape(-1)[0]), weight, seed))
                count += weight.numel()
            elif any(torch.equal(weight.cpu(), _about(value, weight, seed)) for value in (0.0, 1.0)):
                count += weight.numel()
    return count


@contextlib.contextmanager
def no_ones_and_zeros(seed: int) -> Iterator[None]:
    """While modules are made, layers that begin with ones and zeros (norms) begin with numbers about those: the same in
    every process that makes the same layers with the same seed. ``about_constants`` does so for other weights."""
    init: Any = torch.nn.init
    before = init.ones_, init.zeros_

    def about(value: float) -> Callable[[Tensor], Tensor]:
        def fill(tensor: Tensor) -> Tensor:
            with torch.no_grad():
                return tensor.copy_(_about(value, tensor, seed))

        return fill

    init.ones_, init.zeros_ = about(1.0), about(0.0)
    try:
        yield
    finally:
        init.ones_, init.zeros_ = before
