"""What the terms and gradients of an element may call, for ``line_stages.py``.

A GPU converts between float32 and float64 a quarter as often as it adds in float64, so these stay in float64 where a
few more products do it. A line's own functions (``stage_reduction.py``) are called once a line and are exact there.
"""

import triton.language as tl

from kernelworks.build.triton import kernel

LOG2_E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
ROUNDER = tl.constexpr(6755399441055744.0)  # 1.5 2^52: what is added to it is rounded to an integer in its last bits


@kernel
def element_exponential(x):
    """e^x of a double within 2^-28 of it: 2^n 2^r with |r| <= 1/2, 2^r by a polynomial within 2^-29."""
    shifted = x * LOG2_E + ROUNDER
    r = x * LOG2_E - (shifted - ROUNDER)
    p = r * 0.000153458104079289 + 0.0013399931207134473
    p = p * r + 0.009618488963068439
    p = p * r + 0.055503287770033084
    p = p * r + 0.24022646890578775
    p = p * r + 0.6931472057372435
    p = p * r + 1.0000000005541743
    power = shifted.to(tl.int64, bitcast=True) << 52
    made = (p.to(tl.int64, bitcast=True) + power).to(tl.float64, bitcast=True)
    made = tl.where(x < -708.0, 0.0, tl.where(x > 709.0, float("inf"), made))
    return tl.where(x == x, made, x)


@kernel
def element_logarithm(x):
    """log x within 2^-23 of it: x = 2^e m with m from sqrt(1/2) to sqrt(2), and of d = m - 1, which is exact,
    log m = d - z (d - R(z)) with z = d / (2 + d); what is taken from d is a fifth of it, and float32."""
    bits = x.to(tl.int64, bitcast=True)
    power = ((bits - 0x3FE6A09E667F3BCD + (1023 << 52)) >> 52) - 1023
    d = (bits - (power << 52)).to(tl.float64, bitcast=True) - 1.0
    e = (power + 0x4338000000000000).to(tl.float64, bitcast=True) - ROUNDER
    y = e * LN2 + _near_one(d)
    nothing = tl.where(x == 0.0, float("-inf"), float("nan"))
    return tl.where(x > 0.0, tl.where(x == float("inf"), x, y), nothing)


@kernel
def element_log_one_more(e):
    """log(1 + e) within 2^-22 of it for 0 <= e <= 1: from sqrt(2) on as log 2 + log((1 + e) / 2)."""
    far = e > 0.41421356
    return _near_one(tl.where(far, 0.5 * (e - 1.0), e)) + tl.where(far, LN2, 0.0)


@kernel
def _near_one(d):
    """log(1 + d) for d from -0.3 to 0.42."""
    f = d.to(tl.float32)
    z = f / (2.0 + f)
    zz = z * z
    q = zz * (2.0 / 11.0) + 2.0 / 9.0
    q = q * zz + 2.0 / 7.0
    q = q * zz + 2.0 / 5.0
    q = q * zz + 2.0 / 3.0
    return d - (z * (f - zz * q)).to(tl.float64)
