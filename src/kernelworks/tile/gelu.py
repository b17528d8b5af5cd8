"""gelu and its derivative, both forms written around one decaying exponential (derived in the README of its op
package).

16-bit types take shorter ways (``SHORT``; ``SHORTEST`` where the result is rounded to bfloat16 next), which it counts:
they have so few values that all of them are tried.
"""

import triton.language as tl

from kernelworks.tile.exp2 import exp2_gradual, exp2_squared
from kernelworks.tile.functions import kernel
from kernelworks.tile.reciprocal import reciprocal

LINEAR = tl.constexpr(2.302208198144325)  # 2 sqrt(2 / pi) log2 e
CUBIC = tl.constexpr(0.1029432395800235)  # 0.044715 of it
SLOPE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
SLOPE_SQUARE = tl.constexpr(0.21406444881780073)  # 3 * 0.044715 of it
ROOT = tl.constexpr(0.8493218002880191)  # sqrt(log2(e) / 2)
HALF_ROOT = tl.constexpr(0.600561204393225)  # sqrt(log2(e) / 4)
INVERSE_ROOT_TWO_PI = tl.constexpr(0.3989422804014327)
SATURATED = tl.constexpr(20.0)  # every exponential here is 0 long before


@kernel
def _decay(x, square, SHORT: tl.constexpr):
    """e^-|2 u(x)|, x and its square given."""
    if SHORT:
        return exp2_squared(-tl.abs(x * (square * (0.5 * CUBIC) + 0.5 * LINEAR)))
    else:
        return exp2_gradual(-tl.abs(x * (square * CUBIC + LINEAR)))


@kernel
def _tail(x, SHORT: tl.constexpr, SHORTEST: tl.constexpr):
    """Phi(-|x|), and e^(-x^2 / 2). Beyond |x| = 14.6, where the polynomials end, both are 0."""
    t = tl.abs(x)
    if SHORT:
        s = t * HALF_ROOT
        e = exp2_squared(-s * s)
    else:
        s = t * ROOT
        e = exp2_gradual(-s * s)
    if SHORTEST:  # minimax for the relative error, 2^-17.7
        r = reciprocal(1.0 + 0.31 * t)
        p = -0.0739381542 * r + 0.180476145
        p = p * r + 0.0157172014
        p = p * r + 0.133443264
        p = p * r + 0.120438308
        p = p * r + 0.12386093
    else:  # minimax of degree 9, 3.5e-9: the polynomial of simd/normal.hpp
        r = reciprocal(1.0 + 0.3 * t)
        q = r - 0.5929368
        p = -2.062498181e-2 * q + 2.380297133e-3
        p = p * q + 4.410019340e-2
        p = p * q - 9.737040601e-3
        p = p * q - 9.067944731e-2
        p = p * q - 1.061070840e-2
        p = p * q + 2.257009705e-1
        p = p * q + 4.089658405e-1
        p = p * q + 3.993257801e-1
        p = p * q + 2.557316841e-1
    return e * (r * p), e


@kernel
def gelu(x, TANH: tl.constexpr, SHORT: tl.constexpr, SHORTEST: tl.constexpr):
    """max(x, 0) - |x| times the share that x has in the other tail: for x < 0 the only term, else at most half of x."""
    if TANH:
        e = _decay(x, x * x, SHORT)
        tail = e * reciprocal(1.0 + e)
    else:
        tail, e = _tail(x, SHORT, SHORTEST)
    # inf must not meet the 0 that its tail is; -inf must, and gives NaN.
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - tl.abs(tl.minimum(x, SATURATED)) * tail


@kernel
def gelu_both(x, TANH: tl.constexpr, SHORT: tl.constexpr):
    """The value, in the form that a gradient has at hand, and the derivative."""
    if TANH:
        square = tl.minimum(x * x, SATURATED * SATURATED)  # must not overflow
        e = _decay(x, square, SHORT)
        r = reciprocal(1.0 + e)
        s = e * r
        over, under = tl.where(x < 0.0, s, r), tl.where(x < 0.0, r, s)
        return x * over, over + over * under * (square * SLOPE_SQUARE + SLOPE) * x  # in this order a huge x meets a 0
    else:
        tail, e = _tail(x, SHORT, False)
        over = tl.where(x < 0.0, tail, 1.0 - tail)
        return x * over, over + x * INVERSE_ROOT_TWO_PI * e
