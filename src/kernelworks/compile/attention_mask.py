"""What a program masks of its attention's scores, as the op's mask of what is seen; and what it adds to them besides.

A mask may be boolean, or a number that is so low that no score counts beside it, written over scores or added to them.
A tensor that is added is such a mask if it can hold nothing but zeros and one such number; if it may hold others, it is
a bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor, fx

from kernelworks.compile.attention_heads import Sizes
from kernelworks.compile.calls import TensorView, value_of
from kernelworks.compile.constants import constant, possible_values

__all__ = ["CombinedMask", "Mask", "combine_masks", "is_low"]

LOW = -1e9  # no score of a program that works is near it
ABSORBS = -1e30  # times float32's unit roundoff it is still beyond any score: what is added to it is lost


def is_low(fill: float, dtype: torch.dtype) -> bool:
    """Whether a number in the place of a score is one that no score reaches."""
    return fill <= LOW or fill <= torch.finfo(dtype).min


@dataclass(frozen=True)
class Mask:
    """One step that masks scores of a ``shape``. ``kind``: the node says what is "hidden" or what is "seen", and
    ``number`` is written over the rest; or it is "added" after it was multiplied by ``number``."""

    node: fx.Node
    shape: torch.Size
    kind: str
    number: float


@dataclass(frozen=True)
class CombinedMask:
    """All that is masked: by ``seen``, or as torch's function says ``causal``, or by what is ``added``. ``low`` is what
    stands in the place of a score that is not seen, None if each query is known to see a key."""

    seen: TensorView | None = None
    causal: bool = False
    added: TensorView | None = None
    low: float | None = None
    whole: TensorView | None = None  # the mask of a trial, whatever is known of it: boolean, or what is added
    small: Mapping[fx.Node, tuple[int, ...]] = field(default_factory=dict)  # of a trial, by node
    masks: tuple[Mask, ...] = ()
    sized: bool = False  # a number of this call's sizes stands in it
    shifted: bool = False  # scores that are not seen have gradients all the same: ``low`` was added to them

    def blank(
        self, operands: tuple[TensorView, TensorView, TensorView], scale: float, lengths: tuple[int, int]
    ) -> tuple[TensorView, TensorView | float] | None:
        """A mask of what is seen, and what the program gives where that is nothing: the mean of all values where all
        scores are alike. ``lengths``: heads for each of the keys', and keys.

        Of scores that are alike by having had ``low`` added, each has a gradient: with weights of 1 / Lk,
        dS = (dO v^T - dO mean(v)^T) / Lk. It is that of scale q (k^T (v - mean(v)) / Lk), of constant v, which is
        added here and taken away again.
        """
        if self.low is None:
            return None
        seen = self.seen if self.added is None else self.added.by("gt", -math.inf)
        assert seen is not None
        if self.low == -math.inf:
            return seen, math.nan
        q, k, v = operands
        heads, keys = lengths
        mean, apart = v.by("mean", -2, True), v.by("detach").by("sub", v.by("detach").by("mean", -2, True))
        slope = k.by("transpose", -2, -1).by("matmul", apart).by("mul", scale / keys)
        if heads > 1:
            mean, slope = (each.by("repeat_interleave", heads, 1) for each in (mean, slope))
        turn = q.by("matmul", slope)
        return seen, mean.by("add", turn.by("sub", turn.by("detach"))) if self.shifted else mean

    def draw_trial_masks(self, generator: Generator) -> dict[fx.Node, Tensor]:
        """Masks for a trial, by which each query sees the first key."""
        found: dict[fx.Node, Tensor] = {}
        for mask in self.masks:
            noise = torch.randn(self.small[mask.node], dtype=torch.float64, device="cpu", generator=generator)
            if mask.kind != "added":
                found[mask.node] = noise > 0
                found[mask.node][..., 0] = mask.kind == "seen"
            elif (low := _low_of(mask)) is None:
                found[mask.node] = noise
            else:
                found[mask.node] = torch.where(noise > 0, 0.0, low / mask.number).to(torch.float64)
                found[mask.node][..., 0] = 0.0
        return found

    def trial(self, drawn: Mapping[fx.Node, Tensor]) -> Tensor | None:
        return None if self.whole is None else self.whole.of(drawn.__getitem__)


def _low_of(mask: Mask) -> float | None:
    """The number by which what is added hides; None where it may be others than zero and one such number."""
    found = possible_values(mask.node)
    lows = (found or frozenset()) - {0.0}
    low = next(iter(lows)) * mask.number if len(lows) == 1 else 0.0
    return low if low <= ABSORBS and (mask.number == 1 or low == -math.inf) else None


def combine_masks(
    masks: tuple[Mask, ...], sizes: Sizes, lengths: tuple[int, int], dtype: torch.dtype, *, trained: bool,
    constants: dict[fx.Node, Tensor | None],
) -> CombinedMask | None:  # fmt: skip
    """What some masks say together; None if neither the op nor torch's function can say it. ``lengths`` are those of
    queries and keys in a trial; ``trained`` says that gradients are asked for; ``constants`` keeps what was found of
    masks that all layers of a model share."""
    small: dict[fx.Node, tuple[int, ...]] = {}
    for mask in masks:
        tried = _tried(mask, lengths)
        if tried is None or small.get(mask.node, tried) != tried:
            return None
        small[mask.node] = tried
    for node in (mask.node for mask in masks):
        if node not in constants:
            constants[node] = constant(node)
    fixed = all(constants[mask.node] is not None for mask in masks)
    seen: list[TensorView] = []
    added: list[TensorView] = []
    lows: set[float] = set()
    biased = any(mask.kind == "added" and _low_of(mask) is None for mask in masks)
    for mask in masks:
        view, value = _of_heads(mask, sizes), value_of(mask.node)
        low = _low_of(mask) if mask.kind == "added" else mask.number
        if view is None or (mask.kind != "added" and value.dtype is not torch.bool):
            return None
        if low is not None and not (biased and mask.kind == "added" and math.isfinite(low)):
            seen.append({"hidden": view.by("logical_not"), "seen": view, "added": view.by("eq", 0)}[mask.kind])
            lows.add(low)
        elif low is not None and trained and not fixed:
            return None  # torch's function rounds what the gradients of a query that sees nothing are made of
        elif value.dtype == dtype:
            added.append(view if mask.number == 1 else view.by("mul", mask.number))
        elif low is not None and torch.finfo(dtype).min <= ABSORBS:
            added.append(view.by("clamp", torch.finfo(dtype).min))  # it absorbs any score, in the narrower dtype too
        else:
            return None  # rounded to a narrower dtype it were another
    if len(lows) > 1:
        return None
    found = CombinedMask(
        small=small, masks=masks, sized=any(n == "unflatten" for v in (*seen, *added) for n, _ in v.steps)
    )
    if added:
        return _with_bias(found, seen, added, lows, trained=trained)
    if not seen:
        return found
    low = lows.pop()
    shifted = trained and math.isfinite(low) and any(mask.kind == "added" for mask in masks)
    found = replace(found, seen=_both(seen), whole=_both(seen), low=low, shifted=shifted, sized=found.sized or shifted)
    return _as_it_is(found, constants) if fixed else found


def _tried(mask: Mask, lengths: tuple[int, int]) -> tuple[int, ...] | None:
    """The shape of a mask in a trial."""
    shape = [int(n) for n in value_of(mask.node).shape]
    if len(shape) > len(mask.shape):
        return None
    for place, length in ((-1, lengths[1]), (-2, lengths[0])):
        if len(shape) >= -place and shape[place] != 1:
            if shape[place] != mask.shape[place]:
                return None
            shape[place] = length
    return tuple(shape)


def _of_heads(mask: Mask, sizes: Sizes) -> TensorView | None:
    """A mask as it meets scores of [B, H, Lq, Lk]."""
    shape, ahead = value_of(mask.node).shape, [int(n) for n in mask.shape[:-2]]
    view, dims = TensorView(mask.node), len(shape)
    if dims < 3:
        for _ in range(4 - dims):
            view = view.by("unsqueeze", 0)
        return view
    if len(ahead) == 1:
        alike = sizes.H == 1 or shape[0] == 1
        return view.by("unsqueeze", 1) if alike else view.by("unflatten", 0, (-1, sizes.H))
    if len(ahead) == 2 and ahead == [sizes.B, sizes.H]:
        return view if dims == 4 else view.by("unsqueeze", 0)
    if len(ahead) != 3 or ahead[0] != sizes.B or ahead[1] * ahead[2] != sizes.H:
        return None
    for _ in range(5 - dims):
        view = view.by("unsqueeze", 0)
    heads = ([1, 1, *map(int, shape)])[-4:-2]
    if heads == [1, 1]:
        return view.by("select", 2, 0)
    return view.by("flatten", 1, 2) if heads == ahead[1:] else None


def _with_bias(
    found: CombinedMask, seen: Sequence[TensorView], added: Sequence[TensorView], lows: set[float], *, trained: bool
) -> CombinedMask | None:
    total = added[0]
    for more in added[1:]:
        total = total.by("add", more)
    low = lows.pop() if seen else 0.0
    if seen:
        if low != -math.inf and (trained or low > ABSORBS):
            return None  # a query that sees nothing would have another gradient, or other weights
        total = total.by("where", _both(seen), low)
    sets = [possible_values(mask.node) for mask in found.masks if mask.kind == "added"]
    finite = math.isfinite(low) and all(its is not None and all(map(math.isfinite, its)) for its in sets)
    return replace(found, added=total, low=None if finite else -math.inf, whole=total)


def _as_it_is(found: CombinedMask, known: Mapping[fx.Node, Tensor | None]) -> CombinedMask:
    """A mask that is the same in every call, as little of it as has to be said."""
    assert found.seen is not None
    with torch.no_grad():
        exact = found.seen.of(lambda node: torch.as_tensor(known[node]))
    if bool(exact.all()):
        return replace(found, seen=None, low=None)
    if bool((exact == torch.ones_like(exact).tril()).all()):
        return replace(found, seen=None, causal=True, low=None)
    return replace(found, low=None) if bool(exact.any(-1).all()) else found


def _both(seen: Sequence[TensorView]) -> TensorView:
    mask = seen[0]
    for more in seen[1:]:
        mask = mask.by("logical_and", more)
    return mask
