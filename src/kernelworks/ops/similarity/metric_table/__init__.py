"""A Laplacian or a polynomial kernel's matrix times a matrix, without the matrix."""

from __future__ import annotations

from kernelworks.dispatch.signature import Array
from kernelworks.ops.similarity.metric_table.contract import TABLE
from kernelworks.templates.pairwise import length_scale_of

__all__ = ["LAPLACIAN_MATMUL", "POLYNOMIAL_MATMUL", "laplacian_matmul", "polynomial_matmul"]


def laplacian_matmul(
    x: Array,
    y: Array,
    v: Array,
    length_scale: Array | float,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix of a Laplacian kernel times ``v``; K is never stored.

    ``output[i] = sum_j exp(-q) v[j]`` with ``q = sum_d |x_id - y_jd| / length_scale``, the L1 distance: the product
    of D kernels of order 1/2 (``matern12_matmul`` takes the Euclidean distance). A coordinate that two points share
    has the gradient 0.

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

    Error bound: ``u |output| + 2^-24 sum_j k |v[j]| ((D + 4) q + 4 + n)``, about: u the unit roundoff of the dtype,
    n the roundings of a sum (``min(M, 256) + M / 2048``).
    Cost: 2 D + 2 E + 1 flop and one exponential a pair; reads x, y and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: sklearn.metrics.pairwise.laplacian_kernel, gamma = 1 / length_scale.
    """
    output: Array = LAPLACIAN_MATMUL.call(x, y, v, length_scale_of(length_scale, x), out, kernel)
    return output


def polynomial_matmul(
    x: Array,
    y: Array,
    v: Array,
    length_scale: Array | float,
    degree: int = 3,
    coef0: float = 1.0,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix of a polynomial kernel times ``v``; K is never stored.

    ``output[i] = sum_j (x_i . y_j / length_scale^2 + coef0)^degree v[j]``

    Args:
        x: [N, D] points, float32, bfloat16 or float16, any strides. All is computed in float32.
        y: [M, D] points of x's dtype; may be x itself.
        v: [M, E] of x's dtype: E weights for each point of y.
        length_scale: a positive number, taken as float32 (an integer too), or a tensor of one element, float32 or of
            x's dtype, whose gradient may be asked for.
        degree: the power, at least 1. Of degree 1 and coef0 0 it is the linear kernel, of which ``x @ (y.T @ v)`` is
            the cheap form.
        coef0: what is added to the dot product, a finite number, taken as float32.
        out: where to write: a contiguous [N, E] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [N, E] of x's dtype.

    Error bound: ``u |output| + sum_j |v[j]| ((|t| + e)^degree - |t|^degree + (degree + n) 2^-24 |t|^degree)``,
    about, with ``t`` what is raised to the power, off by ``e = 2^-24 ((D + 6) sum_d |x_id y_jd| / length_scale^2 +
    |t| + |coef0|)``, n the roundings of a sum (``min(M, 256) + M / 2048``). Values beyond float32 are infinite.
    Cost: 2 D + 2 E + 4 flop a pair; reads x, y and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: sklearn.metrics.pairwise.polynomial_kernel, gamma = 1 / length_scale^2.
    """
    output: Array = POLYNOMIAL_MATMUL.call(x, y, v, length_scale_of(length_scale, x), degree, coef0, out, kernel)
    return output


LAPLACIAN_MATMUL = TABLE.op("laplacian_matmul")
POLYNOMIAL_MATMUL = TABLE.op("polynomial_matmul")
