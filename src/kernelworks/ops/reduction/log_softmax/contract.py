"""What log_softmax promises; what it shares with other ops along a dimension is in ``templates/along.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF, rounding
from kernelworks.templates.along import Along, chain, distances
from kernelworks.templates.rowwise import Total, total

__all__ = ["CONTRACT", "TEMPLATE"]

U32 = UNIT_ROUNDOFF[torch.float32]


def definition(x: Tensor, dim: int, total: Total = total) -> Tensor:
    distance = x - x.amax(dim, keepdim=True)
    return distance - total(distance.exp(), dim).log()


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    dim, y = args["dim"], outputs[0]
    distance = distances(args["x"], dim)
    # The sum is off by what its terms are, weighted by them, and by its chain; that is what its logarithm is off by.
    sum_off = 1.05 * (y.exp() * distance).sum(dim, keepdim=True) + chain(y, dim) + 12.0
    log_sum = y.amax(dim, keepdim=True) if y.numel() else y
    return (rounding(y, dtype) + U32 * (sum_off + 3.0 * log_sum.abs() + distance + y.abs()),)


def gradient(g: Tensor, y: Tensor, dim: int) -> Tensor:
    return g - y.exp() * g.sum(dim, keepdim=True)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    dim, g, y = args["dim"], grads[0], torch.log_softmax(args["x"], args["dim"])
    (off,) = bound(args, (y,), dtype)  # the backward starts from the output as it was rounded
    largest, sum_ = (y + off).exp(), g.sum(dim, keepdim=True).abs()
    sum_off = U32 * (chain(y, dim) + 8.0) * g.abs().sum(dim, keepdim=True)
    power_off = y.exp() * off.expm1() + U32 * (6.0 + 0.05 * y.abs()) * largest + 2.0**-149
    return {"x": rounding(gradients["x"], dtype) + power_off * sum_ + largest * sum_off + U32 * g.abs() + 2.0**-149}


TEMPLATE = Along(
    op_package=__file__,
    formula="output = x - max(x) - log(sum(e^(x - max(x)))), along dim",
    source="Blanchard, Higham and Higham, Accurately Computing the Log-Sum-Exp and Softmax Functions, 2021",
    function=torch.log_softmax,
    aten="log_softmax.int",
    gradient=gradient,
    plain=definition,
    bound=bound,
    gradient_bound=gradient_bound,
    forward=(4.0, 1.0),
    backward=(3.0, 1.0),
)
CONTRACT = TEMPLATE.contract
