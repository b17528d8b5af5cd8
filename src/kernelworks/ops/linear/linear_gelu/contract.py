"""What linear_gelu promises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract.arguments import Matrix, Vector, Word
from kernelworks.contract.cases import normal
from kernelworks.ops.activation.gelu.contract import share, share_error
from kernelworks.ops.linear.linear.contract import FORM as LINEAR
from kernelworks.templates.epilogue import FLUSHED, SMALLEST, Epilogue, moved
from kernelworks.templates.product import X

__all__ = ["CONTRACT", "FORM", "reference"]


def reference(product: Any, x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    sums: Tensor = product(x, weight)
    sums = sums if bias is None else sums + bias
    return sums * share(sums, approximate)


def inside(form: Epilogue, args: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """How far the sum's error moves gelu, and gelu's own error wherever the sum may be; a reciprocal may be 0 where it
    is below 2^-125."""
    sums, off = form.summed(args, "weight", args["bias"])
    word = args["approximate"]

    def own(v: Tensor) -> Tensor:
        return v.abs() * (share_error(v, word) + 2 * FLUSHED) + SMALLEST

    errors = torch.stack([own(sums - off), own(sums), own(sums + off)]).amax(0)
    return moved(lambda v: v * share(v, word), sums, off) + errors


def others(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"bias": normal(generator, dtype, shape[-1])}


FORM = Epilogue(
    room=__file__,
    formula="output = gelu(x weight^T + bias)",
    source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016 (arXiv:1606.08415); torch.nn.functional.linear",
    arguments={"x": X, "weight": Matrix("x"), "bias": Vector("weight", 0), "approximate": Word("none", "tanh")},
    reference=reference,
    inside=inside,
    others=others,
    chain=LINEAR.chain,
    flop=29,
    functions=1,
    elementary="tanh",
)
CONTRACT = FORM.contract
