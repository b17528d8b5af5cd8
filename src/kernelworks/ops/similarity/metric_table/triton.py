"""laplacian_matmul and polynomial_matmul on the GPU: what ``tile/pairwise_metric.py`` puts into its kernels."""

import triton
import triton.language as tl

from kernelworks.tile.pairwise_metric import PairwiseMetric

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _difference(own, other, inverse):
    return tl.abs((own - other) * inverse)


@triton.jit
def _sign(own, other, inverse):
    """The slope's sign is turned: k falls as a distance grows."""
    return tl.where(own > other, -1.0, tl.where(own < other, 1.0, own - other))


@triton.jit
def _laplacian(q, degree, offset):
    return tl.exp2(q * -LOG2E)


@triton.jit
def _product(own, other, inverse):
    return (own * inverse) * (other * inverse)


@triton.jit
def _other(own, other, inverse):
    return other * inverse


@triton.jit
def _power(t, degree):
    """By squares: a product for each binary digit of the degree, and one for each that is 1."""
    made = tl.zeros_like(t) + 1.0
    left = tl.zeros([], tl.int64) + degree
    while left > 0:
        made = tl.where(left % 2 == 1, made * t, made)
        t = t * t
        left = left // 2
    return made


@triton.jit
def _polynomial(q, degree, offset):
    return _power(q + offset, degree)


@triton.jit
def _polynomial_slope(q, degree, offset):
    return _power(q + offset, degree - 1) * (tl.zeros([], tl.int64) + degree).to(tl.float32)


_LAPLACIAN = PairwiseMetric(__file__, _difference, _sign, _laplacian, _laplacian, stretch=1.0)
_POLYNOMIAL = PairwiseMetric(__file__, _product, _other, _polynomial, _polynomial_slope, stretch=-2.0)
laplacian_matmul_forward, laplacian_matmul_backward = _LAPLACIAN.forward, _LAPLACIAN.backward
polynomial_matmul_forward, polynomial_matmul_backward = _POLYNOMIAL.forward, _POLYNOMIAL.backward
