"""Layer normalisation of a sum: the residual addition and the norm after it, in one pass."""

from __future__ import annotations

from pathlib import Path

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import Array
from kernelworks.ops.norm.add_layer_norm.contract import AT_ONCE, CONTRACT, TEMPLATE
from kernelworks.ops.norm.add_layer_norm.mutants import MUTANTS
from kernelworks.templates.norm import fits_tile

__all__ = ["OP", "add_layer_norm"]


def add_layer_norm(
    x: Array,
    residual: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]:
    """Layer normalisation of the last dimension of a sum, which is returned too, for the next residual.

    ``output = (s - mean(s, -1)) / sqrt(mean((s - mean)^2, -1) + eps) * weight + bias`` with ``s = x + residual``, which
    is normalised before it is rounded to the dtype.

    Args:
        x: [..., N], float32, bfloat16 or float16, any strides.
        residual: [..., N] like x, any strides.
        weight: [N] of x's dtype, or None for ones.
        bias: [N] of x's dtype, or None for zeros.
        eps: added to the variance (the biased one, divided by N). No default: frameworks disagree.
        out: where to write: a pair of contiguous tensors like x.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(output, s)``, both [..., N].

    Error bound: that of layer_norm, and 2^-24 (|s| + mean |s| + |z| mean(|z s|)) |weight| / spread for the rounding of
    the sum; u |s| + 2^-24 |s| of the sum itself.
    Cost: 9 N flop a row; reads x and residual once and writes output and s once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    both: tuple[Array, Array] = OP.call(x, residual, weight, bias, eps, out, kernel)
    return both


OP = TEMPLATE.op(
    CONTRACT,
    ahead=[triton_kernel(Path(__file__).parent, guard=fits_tile, launches=2)],
    mutants=MUTANTS,
    at_once=AT_ONCE,
)
