"""A rough (order 1/2) and a smooth (order 5/2) Matern kernel's matrix times a matrix, without the matrix."""

from __future__ import annotations

from kernelworks.dispatch.signature import Array
from kernelworks.ops.similarity.matern_table.contract import TABLE
from kernelworks.templates.pairwise import length_scale_of

__all__ = ["MATERN12_MATMUL", "MATERN52_MATMUL", "matern12_matmul", "matern52_matmul"]


def matern12_matmul(
    x: Array,
    y: Array,
    v: Array,
    length_scale: Array | float,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix of a Matern kernel of order 1/2 times ``v``; K is never stored.

    ``output[i] = sum_j exp(-z) v[j]`` with ``z = |x_i - y_j| / length_scale``, the Euclidean distance. The gradient of
    a pair of equal points is 0, as ``torch.cdist``'s is.

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

    Error bound: ``kernel_matmul``'s with ``z e^-z / 2`` in the place of ``t k``, and ``2 z k`` for the rounding of
    z. The gradient of points closer than 2^-62 length scales may be lost, for their squared distance is no normal
    number.
    Cost: 3 D + 2 E + 2 flop and one exponential a pair; reads x, y and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Rasmussen and Williams 2006, equation 4.18.
    """
    output: Array = MATERN12_MATMUL.call(x, y, v, length_scale_of(length_scale, x), out, kernel)
    return output


def matern52_matmul(
    x: Array,
    y: Array,
    v: Array,
    length_scale: Array | float,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix of a Matern kernel of order 5/2 times ``v``; K is never stored.

    ``output[i] = sum_j (1 + z + z^2 / 3) exp(-z) v[j]`` with ``z = sqrt(5) |x_i - y_j| / length_scale``

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

    Error bound: ``kernel_matmul``'s with ``z^2 (1 + z) e^-z / 6`` in the place of ``t k``, and ``3 z k`` for the
    rounding of z.
    Cost: 3 D + 2 E + 6 flop and one exponential a pair; reads x, y and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Rasmussen and Williams 2006, equation 4.17.
    """
    output: Array = MATERN52_MATMUL.call(x, y, v, length_scale_of(length_scale, x), out, kernel)
    return output


MATERN12_MATMUL = TABLE.op("matern12_matmul")
MATERN52_MATMUL = TABLE.op("matern52_matmul")
