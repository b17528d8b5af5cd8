"""A Gaussian kernel's matrix times a matrix, without the matrix."""

from __future__ import annotations

from kernelworks.dispatch.signature import Array
from kernelworks.ops.similarity.kernel_matmul.contract import CONTRACT, TEMPLATE
from kernelworks.ops.similarity.kernel_matmul.mutants import MUTANTS
from kernelworks.templates.pairwise import length_scale_of

__all__ = ["OP", "kernel_matmul"]


def kernel_matmul(
    x: Array,
    y: Array,
    v: Array,
    length_scale: Array | float,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """A Gaussian (RBF) kernel's matrix times ``v``.

    ``output[i] = sum_j exp(-|x_i - y_j|^2 / (2 length_scale^2)) v[j]``

    K is never stored: memory grows with N + M, not with N M.

    Args:
        x: [N, D] points, float32, bfloat16 or float16, any strides. All is computed in float32.
        y: [M, D] points of x's dtype; may be x itself.
        v: [M, E] of x's dtype: E weights for each point of y.
        length_scale: a positive number, taken as float32 (an integer too), or a tensor of one element, float32 or of
            x's dtype, whose gradient may be asked for.
        out: where to write: a contiguous [N, E] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [N, E] of x's dtype.

    Error bound: ``u |output| + 2^-24 sum_j k |v[j]| ((D + 8) t + 4 + n)``, about: u the unit roundoff of the dtype, ``t
    = |x_i - y_j|^2 / (2 length_scale^2)``, n the roundings of a sum (``min(M, 256) + M / 2048``). Distances are sums of
    squared differences: points that lie close together are as exact far from the origin as near it.
    Cost: 3 D + 2 E + 1 flop and one exponential a pair; reads x, y and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Rasmussen and Williams 2006, equation 4.9.
    """
    output: Array = OP.call(x, y, v, length_scale_of(length_scale, x), out, kernel)
    return output


OP = TEMPLATE.op(CONTRACT, mutants=MUTANTS)
