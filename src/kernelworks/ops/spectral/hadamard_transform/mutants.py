"""Known-wrong Hadamard transforms."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.spectral.hadamard_transform.contract import transform_lines

__all__ = ["MUTANTS"]


def _by_changes_of_sign(x: Tensor, scale: float) -> Tensor:
    i = torch.arange(x.shape[-1])
    return transform_lines(x.double(), scale)[..., (i ^ (i >> 1)).clamp(max=x.shape[-1] - 1)].to(x.dtype)


MUTANTS = (
    Mutant("another order", _by_changes_of_sign, "rows of the matrix come by their changes of sign"),
    Mutant("scale ignored", lambda x, scale: transform_lines(x, 1.0), "the result is not scaled"),
)
