"""The gate of a gated MLP with both of its projections, in one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from kernelworks.build.kernels import cuda_kernel
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array
from kernelworks.ops.linear.linear_silu_mul.contract import CONTRACT, TEMPLATE
from kernelworks.ops.linear.linear_silu_mul.mutants import MUTANTS
from kernelworks.ops.linear.linear_silu_mul.sm90 import guard

__all__ = ["OP", "linear_silu_mul"]


def linear_silu_mul(
    x: Array, gate_weight: Array, up_weight: Array, *, out: Array | None = None, kernel: str | None = None
) -> Array:
    """Silu of one linear map times another: ``output = silu(x @ gate_weight.T) * (x @ up_weight.T)``, rounded once.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        gate_weight: [N, K] of x's dtype, as torch.nn.Linear stores it.
        up_weight: of gate_weight's shape and dtype. The two may be halves of one tensor.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N] (torch rounds both products and silu to the dtype on the way).

    Error bound: ``u |output|``, and what ``linear``'s errors of both sums and silu_mul's own make of it (README.md).
    Cost: 4 M N K flop for M rows of x, one exponential an element; reads x and both weights, writes output.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Shazeer 2020, arXiv:2002.05202.
    """
    output: Array = OP.call(x, gate_weight, up_weight, out, kernel)
    return output


OP = TEMPLATE.op(
    CONTRACT,
    lambda x, gate_weight, up_weight: F.silu(F.linear(x, gate_weight)) * F.linear(x, up_weight),
    ahead=[cuda_kernel(Path(__file__).parent, guard=guard)],
    mutants=MUTANTS,
    passthrough=Passthrough(
        "mul(silu(linear(x, gate_weight)), linear(x, up_weight))",
        ("x", "gate_weight", "up_weight"),
        ("gate_weight.shape == up_weight.shape",),
        {"mul": torch.mul, "silu": torch._C._nn.silu, "linear": F.linear},
    ),
)
