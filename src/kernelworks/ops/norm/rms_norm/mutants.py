"""Known-wrong versions of rms_norm, beside those that every norm has."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.norm.rms_norm.contract import TEMPLATE

__all__ = ["MUTANTS"]


def _sum_for_mean(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None) -> Any:
    made = TEMPLATE.definition(
        x.float(), weight, eps, residual, total=lambda terms, dim: terms.sum(dim, keepdim=True) * terms.shape[dim]
    )
    return tuple(t.to(x.dtype) for t in made) if residual is not None else made[0].to(x.dtype)


MUTANTS = (Mutant("sum for mean", _sum_for_mean, "never divided by N"),)
