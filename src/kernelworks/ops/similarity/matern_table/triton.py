"""matern12_matmul and matern52_matmul on the GPU: what ``tile/pairwise.py`` puts into its kernels."""

import triton
import triton.language as tl

from kernelworks.tile.pairwise import Pairwise

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _half_value(q):
    return tl.exp2(tl.sqrt_rn(q) * -LOG2E)


@triton.jit
def _half_slope(q):
    z = tl.sqrt_rn(q)
    return tl.where(z == 0.0, 0.0, tl.exp2(z * -LOG2E) / z)


@triton.jit
def _value(q):
    z = tl.sqrt_rn(5.0 * q)
    some = tl.where(z > 1e15, 0.0, z)  # an infinite distance has a k of 0
    return (1.0 + some + some * some * 0.3333333333333333) * tl.exp2(z * -LOG2E)


@triton.jit
def _slope(q):
    z = tl.sqrt_rn(5.0 * q)
    return (1.0 + tl.where(z > 1e15, 0.0, z)) * (tl.exp2(z * -LOG2E) * 1.6666666666666667)


_HALF, _FIVE_HALVES = Pairwise(__file__, _half_value, _half_slope), Pairwise(__file__, _value, _slope)
matern12_matmul_forward, matern12_matmul_backward = _HALF.forward, _HALF.backward
matern52_matmul_forward, matern52_matmul_backward = _FIVE_HALVES.forward, _FIVE_HALVES.backward
