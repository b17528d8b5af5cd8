"""kernel_matmul on the GPU: what ``tile/pairwise.py`` puts into its kernels."""

import triton
import triton.language as tl

from kernelworks.tile.exp2 import exp2_squared
from kernelworks.tile.pairwise import Pairwise

HALF_RATE = tl.constexpr(-0.36067376022224085)  # -log2(e) / 4, of which the power is squared


@triton.jit
def _value(q):
    return exp2_squared(q * HALF_RATE)


_PAIRS = Pairwise(__file__, _value, _value)
forward, backward = _PAIRS.forward, _PAIRS.backward
