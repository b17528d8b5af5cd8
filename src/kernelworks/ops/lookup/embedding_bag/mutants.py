"""Known-wrong versions of embedding_bag. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.lookup.embedding_bag.contract import reference
from kernelworks.templates.mutants import stale_end

__all__ = ["MUTANTS"]


def _changed(how: Callable[[dict[str, Any]], dict[str, Any]], after: Callable[[Tensor], Tensor] = lambda y: y) -> Any:
    """The definition in float64 of arguments that ``how`` changes."""

    def run(
        ids: Tensor,
        weight: Tensor,
        offsets: Tensor,
        mode: str,
        per_sample_weights: Tensor | None,
        padding_idx: int | None,
    ) -> Tensor:
        weights = None if per_sample_weights is None else per_sample_weights.double()
        given: dict[str, Any] = {
            "ids": ids, "weight": weight.double(), "offsets": offsets, "mode": mode, "per_sample_weights": weights,
            "padding_idx": padding_idx,
        }  # fmt: skip
        return after(reference(**given | how(given))[0]).to(weight.dtype)

    return run


def _late(given: dict[str, Any]) -> dict[str, Any]:
    """Each bag but the first begins an id late."""
    offsets = given["offsets"]
    return {"offsets": torch.where(offsets > 0, (offsets + 1).clamp(max=given["ids"].numel()), offsets)}


def _without_last(given: dict[str, Any]) -> dict[str, Any]:
    n = given["ids"].numel()
    weights, last = given["per_sample_weights"], max(n - 1, 0)
    if not n or (given["offsets"] > last).any():
        return {}
    return {"ids": given["ids"][:last], "per_sample_weights": None if weights is None else weights[:last]}


def _mode(other: str) -> Any:
    return _changed(
        lambda given: {"mode": other, "per_sample_weights": given["per_sample_weights"] if other == "sum" else None}
    )


MUTANTS = (
    Mutant("next row", _changed(lambda g: {"ids": (g["ids"] + 1) % len(g["weight"])}), "every id is off by one"),
    Mutant("late", _changed(_late), "bags begin an id late"),
    Mutant("last id missing", _changed(_without_last), "the last id is in no bag"),
    Mutant("always sum", _mode("sum"), "the sum whatever is asked"),
    Mutant("always mean", _mode("mean"), "the mean whatever is asked"),
    Mutant("always max", _mode("max"), "the maximum whatever is asked"),
    Mutant("unweighted", _changed(lambda g: {"per_sample_weights": None}), "weights are not looked at"),
    Mutant("padding counted", _changed(lambda g: {"padding_idx": None}), "padding_idx is not looked at"),
    Mutant("from 0", _changed(lambda g: {}, lambda y: y.clamp(min=0.0)), "a maximum begins at 0"),
    Mutant("stale end", _changed(lambda g: {}, stale_end), "the last output is never written"),
    Mutant(
        "through bfloat16", _changed(lambda g: {"weight": g["weight"].bfloat16().double()}), "rows lose bits on the way"
    ),
    Mutant("NaN swallowed", _changed(lambda g: {"weight": g["weight"].nan_to_num(0.0)}), "NaN becomes 0"),
    Mutant("zeros", _changed(lambda g: {}, torch.zeros_like), "nothing is written"),
)
