"""What silu_mul promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case
from kernelworks.contract.cases import draw
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.pointwise import Pointwise, Work

__all__ = ["CONTRACT", "TEMPLATE"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32: what a subnormal on the way may be off by
OVERFLOW = 2.0**-128  # 1 / e^-gate where e^-gate leaves float32: what the output may be off by, times |gate up|
SATURATION_LIMIT = 105.0  # beyond it e^-|gate| is 0 in float32


def error(output: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    relative = 8.0 + 2.0 * gate.abs().clamp(max=SATURATION_LIMIT) * torch.sigmoid(-gate)
    # silu may itself be subnormal, and is rounded before up scales it.
    tail = SMALLEST * (1.0 + up.abs()) + OVERFLOW * up.abs() * gate.abs().clamp(max=SATURATION_LIMIT)
    return U32 * relative * output.abs() + tail


def slopes_error(grad: Tensor, gate: Tensor, up: Tensor) -> dict[str, Tensor]:
    s, below = torch.sigmoid(gate), torch.sigmoid(-gate)
    steep = 2.0 * gate.abs().clamp(max=SATURATION_LIMIT)
    tail = SMALLEST * (1.0 + gate.abs().clamp(max=SATURATION_LIMIT))
    # The two terms of silu' cancel near gate = -1.28, so each enters with its magnitude.
    slope = U32 * ((10.0 + steep * below) * s + (18.0 + 2.0 * steep) * gate.abs() * s * below) + tail
    value = U32 * (10.0 + steep * below) * (gate * s).abs() + tail
    return {"gate": (grad * up).abs() * slope + 2.0 * SMALLEST, "up": grad.abs() * value + SMALLEST}


def _tiny_and_huge(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    gate = torch.linspace(-110.0, 110.0, 40_009).to(dtype)
    return {"gate": gate, "up": draw("huge", generator, dtype, gate.numel())}


TEMPLATE = Pointwise(
    op_package=__file__,
    formula="output = gate sigmoid(gate) up",
    source="Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202)",
    arguments={"gate": T("..."), "up": T("...", like="gate")},
    reference=lambda gate, up: gate * torch.sigmoid(gate) * up,
    work=Work(forward=20, backward=26, functions=1),
    sweeps={"both tails": 110.0},
    error=error,
    slopes_error=slopes_error,
    reads={"up": ("gate",)},
    cases=(Case("tiny silu, huge up", _tiny_and_huge, gradients=False),),
)
CONTRACT = TEMPLATE.contract
