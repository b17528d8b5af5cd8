"""What linear_silu_mul promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.ops.linear.linear.contract import TEMPLATE as LINEAR
from kernelworks.templates.epilogue import FLUSH_THRESHOLD, SMALLEST, Epilogue, propagated_error
from kernelworks.templates.product import WEIGHT, X

__all__ = ["CONTRACT", "TEMPLATE", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
SATURATION_LIMIT = 105.0  # beyond it e^-|gate| is 0 in float32


def _silu(v: Tensor) -> Tensor:
    return v * torch.sigmoid(v)


def reference(product: Any, x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Tensor:
    output: Tensor = _silu(product(x, gate_weight)) * product(x, up_weight)
    return output


def inner_error(template: Epilogue, args: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Both sums' errors, and those of silu_mul of the largest that the two may be."""
    gate, off = template.sum_and_error(args, "gate_weight")
    up, up_off = template.sum_and_error(args, "up_weight")
    value, spread, most = _silu(gate), propagated_error(_silu, gate, off), up.abs() + up_off
    steep = (gate.abs() + off).clamp(max=SATURATION_LIMIT)
    relative = 8.0 + 2.0 * steep * torch.sigmoid(off - gate)
    tail = (1.0 + most) * (SMALLEST + 2 * FLUSH_THRESHOLD * steep)
    return spread * most + value.abs() * up_off + U32 * relative * (value.abs() + spread) * most + tail


def draw_others(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return {}


TEMPLATE = Epilogue(
    op_package=__file__,
    formula="output = silu(x gate_weight^T) (x up_weight^T)",
    source="Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202)",
    arguments={"x": X, "gate_weight": WEIGHT, "up_weight": WEIGHT},
    weights=("gate_weight", "up_weight"),
    reference=reference,
    inside=inner_error,
    others=draw_others,
    chain=LINEAR.chain,
    flop=20,
    functions=1,
)
CONTRACT = TEMPLATE.contract
