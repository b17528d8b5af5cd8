"""A linear map added to a residual, in one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from kernelworks.build.kernels import cuda_kernel
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array
from kernelworks.ops.linear.linear_add.contract import CONTRACT, TEMPLATE
from kernelworks.ops.linear.linear_add.mutants import MUTANTS
from kernelworks.ops.linear.linear_add.sm90 import guard
from kernelworks.templates.product import BIAS_CONDITION

__all__ = ["OP", "linear_add"]


def linear_add(
    x: Array,
    weight: Array,
    residual: Array,
    bias: Array | None = None,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """Affine map added to a residual: ``output = x @ weight.T + bias + residual``, rounded once.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        weight: [N, K] of x's dtype, as torch.nn.Linear stores it.
        residual: [..., N] of x's dtype, any strides.
        bias: [N] of x's dtype, or None for zeros.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N] (torch rounds the product to the dtype before it adds).

    Error bound: ``u |output|``, ``linear``'s error of the sum, and ``2^-24 |output|``.
    Cost: 2 M N K flop for M rows of x; reads x, weight and residual once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.addmm; He et al. 2015, arXiv:1512.03385.
    """
    output: Array = OP.call(x, weight, residual, bias, out, kernel)
    return output


OP = TEMPLATE.op(
    CONTRACT,
    lambda x, weight, residual, bias: F.linear(x, weight, bias) + residual,
    ahead=[cuda_kernel(Path(__file__).parent, guard=guard)],
    mutants=MUTANTS,
    passthrough=Passthrough(
        "add(linear(x, weight, bias), residual)",
        ("x", "weight", "residual"),
        (BIAS_CONDITION, "(size := residual.shape)[:-1] == x.shape[:-1] and size[-1] == weight.shape[0]"),
        {"add": torch.add, "linear": F.linear},
        ("bias",),
    ),
)
