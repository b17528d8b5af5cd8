"""What rms_norm_linear promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.arguments import Number
from kernelworks.contract.cases import normal
from kernelworks.ops.linear.linear.contract import TEMPLATE as LINEAR
from kernelworks.templates.epilogue import Epilogue
from kernelworks.templates.product import BIAS, WEIGHT, X

__all__ = ["CONTRACT", "TEMPLATE", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]


def _scale(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def reference(product: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    output: Tensor = product(x, weight) * _scale(x, eps)
    return output if bias is None else output + bias


def inner_error(template: Epilogue, args: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """The sum's error, scaled; the scale's, of a chain of K/32 sums halved by the root, as rms_norm's; the bias."""
    (sums, off), scale = template.sum_and_error(args, "weight"), _scale(args["x"], args["eps"])
    relative = (args["x"].shape[-1] / 64 + 12) * U32
    error: Tensor = scale * off * (1 + relative) + relative * (sums * scale).abs()
    return error if args["bias"] is None else error + U32 * ((sums * scale + args["bias"]).abs() + error)


def draw_others(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"bias": normal(generator, dtype, shape[-1]), "eps": 1e-6}


TEMPLATE = Epilogue(
    op_package=__file__,
    formula="output = x weight^T / sqrt(mean(x^2, -1) + eps) + bias",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, 2019 (arXiv:1910.07467)",
    arguments={"x": X, "weight": WEIGHT, "bias": BIAS, "eps": Number()},
    reference=reference,
    inside=inner_error,
    others=draw_others,
    chain=LINEAR.chain,
    flop=2,
)
CONTRACT = TEMPLATE.contract
