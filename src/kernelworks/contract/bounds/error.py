"""The error that a tensor may carry, element by element, kept in two ways of which the smaller counts.

``worst`` adds every rounding up as if all of them pushed the same way. That is tight for a few ops and says nothing
after a few products. ``common`` and ``spread`` tell apart what does push the same way (the bias of an approximated
function, the error of a mean that a whole row is given) from roundings that are independent and add as variances do:
``spread`` is their standard deviation. An honest kernel's error is within ``worst`` always, and within
``common + SUMMED spread`` by the model of ``kernelworks.contract.error_model``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernelworks.contract.error_model import SUM_STDDEVS

__all__ = ["Error", "sum_errors"]

MOST_SHARES = 24  # ops that are told apart in what a bound is made of


@dataclass(frozen=True)
class Error:
    """``shares``: what share of it each op added, by the op's label."""

    worst: Tensor
    common: Tensor
    spread: Tensor
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> Tensor:
        return torch.minimum(self.worst, self.common + SUM_STDDEVS * self.spread)

    @property
    def size(self) -> float:
        """One number for how large it is, to weigh shares by."""
        bound = self.bound
        finite = bound[bound.isfinite()] if bound.numel() else bound
        return float(finite.mean()) if finite.numel() else 0.0

    def map_parts(self, change: Callable[[Tensor], Tensor], spread: Callable[[Tensor], Tensor] | None = None) -> Error:
        """The same change of all three; ``spread`` where a standard deviation changes otherwise."""
        return Error(change(self.worst), change(self.common), (spread or change)(self.spread), self.shares)

    def alike(self) -> Error:
        """The same error where elements are handed on to many: what was independent no longer is."""
        return Error(self.worst, self.common + SUM_STDDEVS * self.spread, torch.zeros_like(self.spread), self.shares)


def sum_errors(parts: Sequence[Error]) -> Error:
    """The error of a result to which several contribute. Standard deviations add, since nothing says that what two
    operands carry is independent."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.size for part in parts]
    total = sum(sizes) or 1.0
    shares: dict[str, float] = {}
    for part, size in zip(parts, sizes, strict=True):
        for label, share in part.shares.items():
            shares[label] = shares.get(label, 0.0) + share * size / total
    most = sorted(shares.items(), key=lambda item: -item[1])[:MOST_SHARES]
    worst, common, spread = parts[0].worst, parts[0].common, parts[0].spread
    for part in parts[1:]:
        worst, common, spread = worst + part.worst, common + part.common, spread + part.spread
    return Error(worst, common, spread, dict(most))
