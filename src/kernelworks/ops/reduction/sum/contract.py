"""What sum promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case
from kernelworks.templates.reduction import Reduction

__all__ = ["CONTRACT", "TEMPLATE"]

U32 = UNIT_ROUNDOFF[torch.float32]
CHAIN = 80  # the longest chain of float32 additions, whatever the length: then sums move on to float64


def _error(x: Tensor, dim: int | None) -> Tensor:
    """One rounding a step of the longest chain, each at most of the sum of magnitudes; one more into float32."""
    n = x.numel() if dim is None or not x.dim() else x.shape[dim]
    return U32 * (min(n, CHAIN) + 1) * torch.sum(x.abs(), dim) + 2.0**-149


def _large_first(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """A number beside which 1 is nothing in float32, then ones: each of them is lost where they are added to it."""
    x = torch.ones(2, 2001, dtype=dtype)
    x[:, 0] = 2.0**24
    return {"x": x, "dim": -1, "keepdim": False}


TEMPLATE = Reduction(
    op_package=__file__,
    formula="output = sum over dim of x",
    source="Higham, The Accuracy of Floating Point Summation, SIAM Journal on Scientific Computing 14(4), 1993",
    function=torch.sum,
    aten="sum.dim_IntList",
    flop=1.0,
    nanoseconds=0.2,
    error=_error,
    cases=(Case("large first", _large_first, dtypes=(torch.float32, torch.bfloat16)),),
)
CONTRACT = TEMPLATE.contract
