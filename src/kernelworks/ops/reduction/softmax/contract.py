"""What softmax promises; what it shares with other ops along a dimension is in ``templates/along.py``."""

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
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return powers / total(powers, dim)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    output, dim = outputs[0], args["dim"]
    distance = distances(args["x"], dim)
    mean_distance = (output * distance).sum(dim, keepdim=True)
    relative = 1.05 * (distance + mean_distance) + chain(output, dim) + 12.0  # in 2^-24, as README.md derives it
    return (rounding(output, dtype) + U32 * relative * output + 2.0**-149,)


def gradient(g: Tensor, y: Tensor, dim: int) -> Tensor:
    return y * (g - (y * g).sum(dim, keepdim=True))


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    dim, y = args["dim"], torch.softmax(args["x"], args["dim"])
    (off,) = bound(args, (y,), dtype)  # the backward starts from the output as it was rounded
    g, largest = grads[0], y + off
    total = (y * g).sum(dim, keepdim=True)
    total_off = ((off + U32 * (chain(y, dim) + 8.0) * largest) * g.abs()).sum(dim, keepdim=True)
    grad_x = off * (g - total).abs() + largest * (total_off + 3.0 * U32 * (g.abs() + total.abs())) + 2.0**-148
    return {"x": rounding(gradients["x"], dtype) + grad_x}


TEMPLATE = Along(
    op_package=__file__,
    formula="output = e^(x - max(x)) / sum(e^(x - max(x))), along dim",
    source="Blanchard, Higham and Higham, Accurately Computing the Log-Sum-Exp and Softmax Functions, 2021",
    function=torch.softmax,
    aten="softmax.int",
    gradient=gradient,
    plain=definition,
    bound=bound,
    gradient_bound=gradient_bound,
    forward=(4.0, 1.0),
    backward=(4.0, 0.0),
)
CONTRACT = TEMPLATE.contract
