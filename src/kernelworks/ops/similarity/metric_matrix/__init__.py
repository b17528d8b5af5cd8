"""The matrices of a linear, a polynomial and a Laplacian kernel over all pairs of points."""

from __future__ import annotations

from kernelworks.dispatch.signature import Array
from kernelworks.ops.similarity.metric_matrix.matrix import TABLE

__all__ = [
    "LAPLACIAN_KERNEL", "LINEAR_KERNEL", "POLYNOMIAL_KERNEL", "laplacian_kernel", "linear_kernel", "polynomial_kernel",
]  # fmt: skip


def linear_kernel(x: Array, y: Array, *, out: Array | None = None, kernel: str | None = None) -> Array:
    """The matrix of a linear kernel over all pairs of points: ``output[i, j] = x_i . y_j``.

    Where K is only multiplied with v, ``x @ (y.T @ v)`` forms nothing of all pairs.

    Args:
        x: [N, D] points, float32, bfloat16 or float16, any strides. All is computed in float32.
        y: [M, D] points of x's dtype; may be x itself.
        out: where to write: a contiguous [N, M] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [N, M] of x's dtype.

    Error bound: ``u |output| + (D + 2) 2^-24 sum_d |x_id y_jd|``, about: u the unit roundoff of the dtype.
    Cost: 2 D flop a pair; reads x and y and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: sklearn.metrics.pairwise.linear_kernel.
    """
    output: Array = LINEAR_KERNEL.call(x, y, out, kernel)
    return output


def polynomial_kernel(
    x: Array,
    y: Array,
    degree: int = 3,
    gamma: float | None = None,
    coef0: float = 1.0,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix of a polynomial kernel over all pairs: ``output[i, j] = (gamma x_i . y_j + coef0)^degree``.

    Where K is only multiplied with something, ``polynomial_matmul`` need not store it.

    Args:
        x: [N, D] points, float32, bfloat16 or float16, any strides. All is computed in float32.
        y: [M, D] points of x's dtype; may be x itself.
        degree: the power, at least 0; a power of 0 is 1, also of 0 and of NaN.
        gamma: a positive number that float32 holds (from 2^-126), or None for 1 / D.
        coef0: what is added to the dot product, a finite number, taken as float32.
        out: where to write: a contiguous [N, M] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [N, M] of x's dtype. Values beyond its range are infinite.

    Error bound: ``u |output| + (|t| + e)^degree - |t|^degree + degree 2^-24 |t|^degree``, about, with ``t`` what is
    raised to the power, off by ``e = 2^-24 ((D + 2) gamma sum_d |x_id y_jd| + |t| + |coef0|)``.
    Cost: 2 D + 4 flop a pair; reads x and y and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: sklearn.metrics.pairwise.polynomial_kernel; Rasmussen and Williams 2006, section 4.2.2.
    """
    output: Array = POLYNOMIAL_KERNEL.call(x, y, degree, gamma, coef0, out, kernel)
    return output


def laplacian_kernel(
    x: Array, y: Array, gamma: float | None = None, *, out: Array | None = None, kernel: str | None = None
) -> Array:
    """The matrix of a Laplacian kernel over all pairs: ``output[i, j] = exp(-gamma sum_d |x_id - y_jd|)``.

    Where K is only multiplied with something, ``laplacian_matmul`` need not store it. A coordinate that two points
    share has the gradient 0.

    Args:
        x: [N, D] points, float32, bfloat16 or float16, any strides. All is computed in float32.
        y: [M, D] points of x's dtype; may be x itself.
        gamma: a positive number that float32 holds (from 2^-126), or None for 1 / D.
        out: where to write: a contiguous [N, M] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [N, M] of x's dtype.

    Error bound: ``u k + ((D + 3) q + 4) 2^-24 k``, about, with ``q = gamma sum_d |x_id - y_jd|``. Coordinates are
    subtracted first: points may be far from the origin and close together.
    Cost: 2 D + 1 flop and one exponential a pair; reads x and y and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: sklearn.metrics.pairwise.laplacian_kernel.
    """
    output: Array = LAPLACIAN_KERNEL.call(x, y, gamma, out, kernel)
    return output


LAPLACIAN_KERNEL = TABLE.op("laplacian_kernel")
LINEAR_KERNEL = TABLE.op("linear_kernel")
POLYNOMIAL_KERNEL = TABLE.op("polynomial_kernel")
