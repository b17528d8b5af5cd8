"""matern32_matmul on the GPU: what ``tile/pairwise.py`` puts into its kernels."""

import triton
import triton.language as tl

from kernelworks.tile.pairwise import Pairwise

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _value(q):
    z = tl.sqrt_rn(3.0 * q)
    return (1.0 + tl.where(z > 1e30, 0.0, z)) * tl.exp2(z * -LOG2E)  # an infinite distance has a k of 0


@triton.jit
def _slope(q):
    return 3.0 * tl.exp2(tl.sqrt_rn(3.0 * q) * -LOG2E)


_PAIRS = Pairwise(__file__, _value, _slope)
forward, backward = _PAIRS.forward, _PAIRS.backward
