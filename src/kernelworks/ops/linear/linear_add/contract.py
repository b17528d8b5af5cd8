"""What linear_add promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.cases import normal
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.linear.linear.contract import TEMPLATE as LINEAR
from kernelworks.templates.epilogue import Epilogue
from kernelworks.templates.product import BIAS, WEIGHT, X

__all__ = ["CONTRACT", "TEMPLATE", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]


def reference(product: Any, x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None) -> Tensor:
    sums: Tensor = product(x, weight)
    sums = sums if bias is None else sums + bias
    return sums + residual


def inner_error(template: Epilogue, args: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """The sum's error, and one rounding of what comes of it."""
    sums, off = template.sum_and_error(args, "weight", args["bias"])
    # The residual may meet the sum before or after the bias.
    largest: Tensor = (sums + args["residual"]).abs() + off + (0.0 if args["bias"] is None else args["bias"].abs())
    return off + U32 * largest


def draw_others(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"residual": normal(generator, dtype, *shape), "bias": normal(generator, dtype, shape[-1])}


TEMPLATE = Epilogue(
    op_package=__file__,
    formula="output = x weight^T + bias + residual",
    source="torch.addmm; He et al., Deep Residual Learning, 2015 (arXiv:1512.03385)",
    arguments={
        "x": X,
        "weight": WEIGHT,
        "residual": T("... N", like="x"),
        "bias": BIAS,
    },
    reference=reference,
    inside=inner_error,
    others=draw_others,
    chain=LINEAR.chain,
    flop=2,
)
CONTRACT = TEMPLATE.contract
