"""Known-wrong versions of adamw_. The verification must reject every one. Each changes its arguments, as the op
does."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernelworks.ops.optimizer.adamw.contract import TEMPLATE, adamw_step

__all__ = ["MUTANTS"]


def _coupled(p: Tensor, g: Tensor, m: Tensor, v: Tensor, **named: Any) -> tuple[Tensor, ...]:
    return adamw_step(p, g + named["weight_decay"] * p, m, v, **(named | {"weight_decay": 0.0}))


def _eps_inside(p: Tensor, g: Tensor, m: Tensor, v: Tensor, **named: Any) -> tuple[Tensor, ...]:
    shifted = adamw_step(p, g, m, v + named["eps"] / named["beta2"] if named["beta2"] else v, **(named | {"eps": 0.0}))
    return shifted[0], *adamw_step(p, g, m, v, **named)[1:]


def _uncorrected(p: Tensor, g: Tensor, m: Tensor, v: Tensor, **named: Any) -> tuple[Tensor, ...]:
    return adamw_step(p, g, m, v, **(named | {"step": 10**9}))


def _low_precision(p: Tensor, g: Tensor, m: Tensor, v: Tensor, **named: Any) -> tuple[Tensor, ...]:
    after = adamw_step(p, g.bfloat16().double(), m.bfloat16().double(), v.bfloat16().double(), **named)
    return after[0], *adamw_step(p, g, m, v, **named)[1:]


MUTANTS = (
    TEMPLATE.mutant("decay in the gradient", _coupled, "Adam with L2 instead of decoupled decay"),
    TEMPLATE.mutant("eps inside the root", _eps_inside, "eps added to v"),
    TEMPLATE.mutant("no bias correction", _uncorrected, "the first steps come out too small"),
    TEMPLATE.mutant("update from rounded state", _low_precision, "the update is made from rounded state"),
    TEMPLATE.mutant_of_numbers("one step behind", "the correction of the next step", step=lambda a: a["step"] + 1),
    TEMPLATE.mutant_of_numbers("missing decay", "weight_decay is not applied", weight_decay=lambda a: 0.0),
    TEMPLATE.mutant_of_numbers("maximize ignored", "the sign of the gradient", maximize=lambda a: False),
    TEMPLATE.mutant_of_numbers(
        "betas swapped", "beta1 for beta2", beta1=lambda a: a["beta2"], beta2=lambda a: a["beta1"]
    ),
)
