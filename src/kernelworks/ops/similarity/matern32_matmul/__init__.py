"""A Matern kernel's matrix times a matrix, without the matrix."""

from __future__ import annotations

from kernelworks.dispatch.signature import Array
from kernelworks.ops.similarity.matern32_matmul.contract import CONTRACT, TEMPLATE
from kernelworks.ops.similarity.matern32_matmul.mutants import MUTANTS
from kernelworks.templates.pairwise import length_scale_of

__all__ = ["OP", "matern32_matmul"]


def matern32_matmul(
    x: Array,
    y: Array,
    v: Array,
    length_scale: Array | float,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix of a Matern kernel of order 3/2 times ``v``; K is never stored.

    ``output[i] = sum_j (1 + z) exp(-z) v[j]`` with ``z = sqrt(3) |x_i - y_j| / length_scale``

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

    Error bound: ``kernel_matmul``'s with ``z^2 e^-z`` in the place of ``t k``, and ``3 z k`` for the rounding of z.
    Cost: 3 D + 2 E + 4 flop and one exponential a pair; reads x, y and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Rasmussen and Williams 2006, equation 4.17.
    """
    output: Array = OP.call(x, y, v, length_scale_of(length_scale, x), out, kernel)
    return output


OP = TEMPLATE.op(CONTRACT, mutants=MUTANTS)
