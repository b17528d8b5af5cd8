"""A linear map and the Gaussian error linear unit of what it gives, in one."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from kernelworks.build.kernels import cuda_kernel
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array
from kernelworks.ops.linear.linear_gelu.contract import CONTRACT, TEMPLATE
from kernelworks.ops.linear.linear_gelu.mutants import MUTANTS
from kernelworks.ops.linear.linear_gelu.sm90 import guard
from kernelworks.templates.product import BIAS_CONDITION

__all__ = ["OP", "linear_gelu"]


def linear_gelu(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    approximate: str = "none",
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """Gelu of an affine map: ``output = gelu(x @ weight.T + bias)``, rounded once.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        weight: [N, K] of x's dtype, as torch.nn.Linear stores it.
        bias: [N] of x's dtype, or None for zeros.
        approximate: ``"none"`` (torch's default) or ``"tanh"``: see ``gelu``.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N] (torch rounds the sums to the dtype before gelu).

    Error bound: ``u |output|``, how far ``linear``'s error of the sum moves gelu, and gelu's own error in float32.
    Cost: 2 M N K flop for M rows of x, one exponential an element of the result; reads x and weight, writes output.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; torch.nn.functional.linear.
    """
    output: Array = OP.call(x, weight, bias, approximate, out, kernel)
    return output


OP = TEMPLATE.op(
    CONTRACT,
    lambda x, weight, bias, approximate: F.gelu(F.linear(x, weight, bias), approximate=approximate),
    ahead=[cuda_kernel(Path(__file__).parent, guard=guard)],
    mutants=MUTANTS,
    passthrough=Passthrough(
        "gelu(linear(x, weight, bias), approximate=approximate)",
        ("x", "weight"),
        (BIAS_CONDITION,),
        {"gelu": F.gelu, "linear": F.linear},
        ("bias",),
    ),
)
