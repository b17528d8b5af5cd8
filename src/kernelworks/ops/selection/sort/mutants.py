"""What only sort gets wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _from_behind(x: Tensor, dim: int, descending: bool, stable: bool) -> Any:
    if not x.dim():
        return torch.sort(x, dim=dim, descending=descending, stable=stable)
    values, indices = torch.sort(x.flip(dim), dim=dim, descending=descending, stable=True)
    return values, x.shape[dim] - 1 - indices


MUTANTS = (Mutant("unstable", _from_behind, "of equal elements the last comes first"),)
