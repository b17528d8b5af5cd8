"""What a fused expression may call on a GPU beside the functions of the table of activations (``tile/activation.py``).
Unlike those, these take any argument. The polynomials are those of ``simd/fused_functions.hpp``."""

import triton
import triton.language as tl

from kernelworks.tile.activation import exp_less_one
from kernelworks.tile.gelu import _tail

LOG2_E = tl.constexpr(1.44269504)
LOWEST, HIGHEST = tl.constexpr(-105.0), tl.constexpr(89.0)  # of an exponential that is neither 0 nor infinite
WHOLE = tl.constexpr(8388608.0)  # 2^23: from here on float32 has no fraction, nor has a sum with it
SMALLEST_NORMAL = tl.constexpr(1.17549435e-38)
ROOT_HALF = tl.constexpr(0x3F3504F3)  # the bits of sqrt(1/2)


@triton.jit
def larger(a, b):
    """Of two the larger, or NaN where either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_largest(x, inside):
    """The largest of each row, NaN where any is."""
    found = tl.max(tl.where(inside & (x == x), x, float("-inf")), 1)
    lost = tl.max((inside & (x != x)).to(tl.int32), 1)
    return tl.where(lost > 0, float("nan"), found)[:, None]


@triton.jit
def row_smallest(x, inside):
    return -row_largest(-x, inside)


@triton.jit
def row_sum(x, inside):
    return tl.sum(tl.where(inside, x, 0.0), 1)[:, None]


@triton.jit
def power_of_two(n):
    """2^n for whole n from -126 to 127, by its bits; of a NaN anything finite."""
    whole = tl.where(n == n, n, 0.0).to(tl.int32)
    return ((whole + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponential_any(x):
    """e^x: e^r with |r| <= ln 2 / 2, times 2^n in two steps, the last of which may be subnormal."""
    x = smaller(larger(x, LOWEST), HIGHEST)
    n = tl.floor(x * LOG2_E + 0.5)
    r = tl.fma(n, -1.42860677e-6, tl.fma(n, -0.693145752, x))
    q = tl.fma(r, 1.98412698e-4, 1.38888889e-3)
    q = tl.fma(q, r, 8.33333333e-3)
    q = tl.fma(q, r, 4.16666667e-2)
    q = tl.fma(q, r, 1.66666667e-1)
    q = tl.fma(q, r, 0.5)
    e = tl.fma(q * r, r, r) + 1.0
    first = tl.floor(n * 0.5)
    return e * power_of_two(first) * power_of_two(n - first)


@triton.jit
def exponential_less_one_any(x):
    return tl.where(x > 10.0, exponential_any(x) - 1.0, exp_less_one(smaller(x, 10.0)))


@triton.jit
def logistic(x):
    """Neither overflows nor cancels."""
    e = exponential_any(-tl.abs(x))
    return tl.div_rn(tl.where(x < 0.0, e, 1.0), 1.0 + e)


@triton.jit
def logarithm(x):
    """n ln 2 + log(1 + m), with 1 + m from sqrt(1/2) to sqrt(2)."""
    small = x < SMALLEST_NORMAL
    scaled = tl.where(small, x * 8388608.0, x)
    bits = scaled.to(tl.int32, bitcast=True) - ROOT_HALF
    n = (bits >> 23).to(tl.float32) - tl.where(small, 23.0, 0.0)
    m = ((bits & 0x7FFFFF) + ROOT_HALF).to(tl.float32, bitcast=True) - 1.0
    mm = m * m
    p = tl.fma(m, 7.0376836292e-2, -1.1514610310e-1)
    p = tl.fma(p, m, 1.1676998740e-1)
    p = tl.fma(p, m, -1.2420140846e-1)
    p = tl.fma(p, m, 1.4249322787e-1)
    p = tl.fma(p, m, -1.6668057665e-1)
    p = tl.fma(p, m, 2.0000714765e-1)
    p = tl.fma(p, m, -2.4999993993e-1)
    p = tl.fma(p, m, 3.3333331174e-1)
    p = tl.fma(p * m, mm, tl.fma(n, -2.12194440e-4, -0.5 * mm))
    r = tl.fma(n, 0.693359375, m + p)
    r = tl.where(x == 0.0, float("-inf"), r)
    r = tl.where(x < 0.0, float("nan"), r)
    return tl.where(x < float("inf"), r, x)


@triton.jit
def logarithm_one_more_any(x):
    """log(1 + x): the logarithm of the rounded 1 + x, and what the rounding lost over it."""
    u = 1.0 + x
    lost = x - (u - 1.0)
    r = logarithm(u) + tl.div_rn(lost, u)
    return tl.where((u == 1.0) | (x == float("inf")), x, r)


@triton.jit
def error_function(x):
    """A rational function of x up to |x| = 4, from where on float32 has no more than 1."""
    x = smaller(larger(x, -4.0), 4.0)
    z = x * x
    p = tl.fma(z, -2.72614225801306e-10, 2.77068142495902e-08)
    p = tl.fma(p, z, -2.10102402082508e-06)
    p = tl.fma(p, z, -5.69250639462346e-05)
    p = tl.fma(p, z, -7.34990630326855e-04)
    p = tl.fma(p, z, -2.95459980854025e-03)
    p = tl.fma(p, z, -1.60960333262415e-02)
    q = tl.fma(z, -1.45660718464996e-05, -2.13374055278905e-04)
    q = tl.fma(q, z, -1.68282697438203e-03)
    q = tl.fma(q, z, -7.37332916720468e-03)
    q = tl.fma(q, z, -1.42647390514189e-02)
    return x * tl.div_rn(p, q)  # in this order a subnormal x is rounded once


@triton.jit
def normal_distribution(x):
    tail, _ = _tail(x, False, False)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def nearest_whole(x):
    """Halves go to the even one; 0 keeps the sign of x."""
    n = (tl.abs(x) + WHOLE) - WHOLE
    n = tl.where(n == 0.0, x * 0.0, tl.where(x < 0.0, -n, n))
    return tl.where(tl.abs(x) < WHOLE, n, x)


@triton.jit
def rounded_to_bfloat16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def rounded_to_float16(x):
    return x.to(tl.float16).to(tl.float32)
