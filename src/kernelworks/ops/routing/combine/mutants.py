"""Known-wrong versions of combine. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.routing.combine.contract import named_rows, reference
from kernelworks.templates.mutants import VECTOR, stale_end

__all__ = ["MUTANTS"]

Arguments = tuple[Tensor, Tensor, Tensor]


def _exact(rows: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    return reference(rows.double(), weights.double(), places)[0]


def _before(change: Callable[[Tensor, Tensor, Tensor], Arguments]) -> Callable[..., Tensor]:
    """The right sum of changed arguments."""
    return lambda rows, weights, places: _exact(*change(rows, weights, places)).to(rows.dtype)


def _after(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda rows, weights, places: change(_exact(rows, weights, places)).to(rows.dtype)


def _wrapped(rows: Tensor, weights: Tensor, places: Tensor) -> Arguments:
    return rows, weights, places % max(rows.shape[0], 1)


def _clamped(rows: Tensor, weights: Tensor, places: Tensor) -> Arguments:
    return rows, weights, places.clamp(0, max(rows.shape[0] - 1, 0))


def _dropped_weights(rows: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """What is dropped adds a product with 0, which NaN survives."""
    named, _ = named_rows(rows.double(), places)
    return (named * weights.double().unsqueeze(-1)).sum(1).to(rows.dtype)


def _short(rows: Tensor, weights: Tensor, places: Tensor) -> Arguments:
    places = places.clone()
    places[:, 8:] = -1
    return rows, weights, places


def _stale_columns(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, y.shape[1] // VECTOR * VECTOR :] = 0.0
    return y


def _sums_in_dtype(rows: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """Each product is rounded to bfloat16 and so is each sum."""
    named, inside = named_rows(rows, places)
    total = torch.zeros(places.shape[0], rows.shape[1], dtype=torch.bfloat16)
    for j in range(places.shape[1]):
        weight = torch.where(inside[:, j], weights[:, j], 0.0)
        total = total + (named[:, j].float() * weight.float().unsqueeze(-1)).bfloat16()
    return total.to(rows.dtype)


MUTANTS = (
    Mutant("places from 1", _before(lambda r, w, p: (r, w, p - 1)), "the row before the named one"),
    Mutant("places wrap around", _before(_wrapped), "a place that names no row names one from the other end"),
    Mutant("places are clamped", _before(_clamped), "a place that names no row names the first or last"),
    Mutant("dropped times 0", _dropped_weights, "what is dropped is multiplied by its weight"),
    Mutant("no weights", _before(lambda r, w, p: (r, torch.ones_like(w), p)), "rows are added as they are"),
    Mutant("weights of the choice before", _before(lambda r, w, p: (r, w.roll(1, 1), p)), "weights change places"),
    Mutant("weights of the token before", _before(lambda r, w, p: (r, w.roll(1, 0), p)), "another token's weights"),
    Mutant("bfloat16 weights", _before(lambda r, w, p: (r, w.bfloat16(), p)), "weights lose bits"),
    Mutant("eight choices", _before(_short), "no more than eight rows are added"),
    Mutant("last choice missing", _before(lambda r, w, p: (r, w[:, :-1], p[:, :-1])), "the last row is not added"),
    Mutant("mean", lambda r, w, p: (_exact(r, w, p) / max(p.shape[1], 1)).to(r.dtype), "divided by their number"),
    Mutant("bfloat16 sums", _sums_in_dtype, "the sum is kept in bfloat16"),
    Mutant("stale columns", _after(_stale_columns), "the last columns are not written"),
    Mutant("stale end", _after(stale_end), "the last element is not written"),
    Mutant("NaN swallowed", _after(lambda y: y.nan_to_num(0.0)), "NaN becomes 0"),
    Mutant("zeros", _after(torch.zeros_like), "nothing is written"),
)  # fmt: skip
