"""kernel_matmul on the GPU: what ``tile/pairwise.py`` puts into its kernels."""

import triton
import triton.language as tl

from kernelworks.tile.pairwise import Pairwise

RATE = tl.constexpr(-0.7213475204444817)  # -log2(e) / 2


@triton.jit
def _value(q):
    return tl.exp2(q * RATE)


_PAIRS = Pairwise(__file__, _value, _value)
forward, backward = _PAIRS.forward, _PAIRS.backward
