"""Known-wrong versions of nll_loss. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.reduction.nll_loss.contract import reference, row_weights
from kernelworks.templates.mutants import stale_end

__all__ = ["MUTANTS"]


def _changed(how: Callable[[dict[str, Any]], dict[str, Any]], after: Callable[[Tensor], Tensor] = lambda y: y) -> Any:
    """The definition in float64 of arguments that ``how`` changes."""

    def run(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
        given: dict[str, Any] = {
            "x": x.double(), "target": target, "weight": None if weight is None else weight.double(),
            "ignore_index": ignore_index, "reduction": reduction,
        }  # fmt: skip
        return after(reference(**given | how(given))[0]).to(x.dtype)

    return run


def _next_class(given: dict[str, Any]) -> dict[str, Any]:
    target, valid = given["target"], given["target"] != given["ignore_index"]
    return (
        {"target": torch.where(valid, (target + 1) % max(given["x"].shape[1], 1), target), "ignore_index": -(2**40)}
        if (valid.all())
        else {"x": given["x"].roll(-1, 1)}
    )


def _over_rows(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    """A mean over the rows that count, whatever they weigh."""
    if reduction != "mean":
        right: Tensor = _changed(lambda g: {})(x, target, weight, ignore_index, reduction)
        return right
    table = None if weight is None else weight.double()
    total = reference(x.double(), target, table, ignore_index, "sum")[0]
    mean: Tensor = total / (target != ignore_index).sum()
    return mean.to(x.dtype)


def _over_all(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    """A mean over all rows, those that are ignored too."""
    right: Tensor = _changed(lambda g: {})(x, target, weight, ignore_index, reduction)
    if reduction != "mean":
        return right
    weights, _ = row_weights(x.double(), target, None if weight is None else weight.double(), ignore_index)
    return (right.double() * weights.sum() / len(target)).to(x.dtype)


MUTANTS = (
    Mutant("next class", _changed(_next_class), "every class is off by one"),
    Mutant("unweighted", _changed(lambda g: {"weight": None}), "weights are not looked at"),
    Mutant("over rows", _over_rows, "the mean is over the rows, not over their weights"),
    Mutant("over all", _over_all, "rows that are ignored count"),
    Mutant("likelihood", _changed(lambda g: {}, lambda y: -y), "the sign is lost"),
    Mutant("always mean", _changed(lambda g: {"reduction": "mean"}), "the mean whatever is asked"),
    Mutant("always sum", _changed(lambda g: {"reduction": "sum"}), "the sum whatever is asked"),
    Mutant("bfloat16 inside", _changed(lambda g: {"x": g["x"].bfloat16().double()}), "x is rounded first"),
    Mutant("NaN ignored", _changed(lambda g: {"x": g["x"].nan_to_num(0.0)}), "NaN is 0"),
    Mutant("stale end", _changed(lambda g: {}, stale_end), "the last output is never written"),
    Mutant("zeros", _changed(lambda g: {}, torch.zeros_like), "nothing is written"),
)
