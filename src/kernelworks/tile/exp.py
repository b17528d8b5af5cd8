"""The exponential of a difference from the maximum, as softmax and cross-entropy need it."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-110.0)  # e^-103.97 is half the smallest float32


@triton.jit
def exp(d):
    """e^d for d <= 0 in float32, subnormal results too; NaN stays NaN and -inf gives 0.

    The machine's 2^t is good to two units in the last place, but t = d log2(e) is rounded, which moves 2^t by |d| 2^-24
    and more. What the rounding lost is d - t ln 2, small and nearly exact in one fused step; the result is corrected
    by it. The float32 ln 2 is off by 0.05 2^-24 of itself, so 0.05 |d| 2^-24 is left of that error.
    """
    d = tl.maximum(d, LOWEST, propagate_nan=tl.PropagateNan.ALL)  # a correction of -inf would be NaN
    e = tl.exp(d)
    return tl.fma(e, tl.fma(d * LOG2E, -LN2, d), e)


@triton.jit
def exp_to_add(d):
    """e^d for d <= 0 in float32, for a sum that holds a 1: below 2^-126 it gives 0, and its error grows with |d|.

    Relative error at most (4 + 1.25 |d|) 2^-24. Terms with a large |d| are a small part of such a sum: the average of
    |d|, weighted by the terms, is at most the logarithm of their number.
    """
    return tl.exp2(d * LOG2E)
