"""The tangent that caps scores, within 8 roundings of its value; Triton's library has one that no interpreter runs."""

import triton
import triton.language as tl

from kernelworks.tile.reciprocal import reciprocal


@triton.jit
def tanh(x):
    """1 - 2 / (1 + e^2|x|) with x's sign; below 5/8, where that cancels, x (1 + x^2 P(x^2)) with P minimax, 4e-9."""
    far = 1.0 - 2.0 * reciprocal(1.0 + tl.exp2(tl.abs(x) * 2.8853900817779268))
    square = x * x
    p = -0.005704984069 * square + 0.02063908428
    p = p * square - 0.05373971537
    p = p * square + 0.1333144158
    p = p * square - 0.3333328068
    near = x * square * p + x
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0.0, -far, far))
