"""Powers of two below 1 that underflow gradually. ``tl.exp2`` is one instruction, which gives 0 below 2^-126."""

import triton
import triton.language as tl


@triton.jit
def exp2_gradual(w):
    """2^w for w <= 0, as exact as the instruction, and within half of 2^-149 where that is more."""
    small = w < -125.0
    power = tl.exp2(tl.where(small, 0.5 * w, w))
    return tl.where(small, power * power, power)


@triton.jit
def exp2_squared(half):
    """2^(2 half) for half <= 0: twice the instruction's error and half a unit, for one operation more than it."""
    power = tl.exp2(half)
    return power * power
