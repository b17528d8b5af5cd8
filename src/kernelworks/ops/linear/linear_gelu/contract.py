"""What linear_gelu promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract.arguments import Word
from kernelworks.contract.cases import normal
from kernelworks.ops.activation.gelu.contract import share, share_error
from kernelworks.ops.linear.linear.contract import TEMPLATE as LINEAR
from kernelworks.templates.epilogue import FLUSH_THRESHOLD, SMALLEST, Epilogue, propagated_error
from kernelworks.templates.product import BIAS, WEIGHT, X

__all__ = ["CONTRACT", "TEMPLATE", "reference"]


def reference(product: Any, x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    sums: Tensor = product(x, weight)
    sums = sums if bias is None else sums + bias
    return sums * share(sums, approximate)


def inner_error(template: Epilogue, args: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """How far the sum's error moves gelu, and gelu's own error wherever the sum may be; a reciprocal may be 0 where it
    is below 2^-125."""
    sums, off = template.sum_and_error(args, "weight", args["bias"])
    word = args["approximate"]

    def own(v: Tensor) -> Tensor:
        return v.abs() * (share_error(v, word) + 2 * FLUSH_THRESHOLD) + SMALLEST

    errors = torch.stack([own(sums - off), own(sums), own(sums + off)]).amax(0)
    return propagated_error(lambda v: v * share(v, word), sums, off) + errors


def draw_others(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"bias": normal(generator, dtype, shape[-1])}


TEMPLATE = Epilogue(
    op_package=__file__,
    formula="output = gelu(x weight^T + bias)",
    source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016 (arXiv:1606.08415); torch.nn.functional.linear",
    arguments={
        "x": X,
        "weight": WEIGHT,
        "bias": BIAS,
        "approximate": Word("none", "tanh"),
    },
    reference=reference,
    inside=inner_error,
    others=draw_others,
    chain=LINEAR.chain,
    flop=29,
    functions=1,
    elementary="tanh",
)
CONTRACT = TEMPLATE.contract
