"""The counter-based stream of random bits on a GPU: Philox4x32-10, laid out as in ``contract/philox.py``."""

import triton
import triton.language as tl

A, B = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
WEYL_A, WEYL_B = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@triton.jit
def random_bits(element, seed_low, seed_high, offset_low, offset_high):
    """The 32 bits of elements (int64) of a stream. The words of seed and offset are integers of 32 bits."""
    place = (element % 64).to(tl.uint32)
    counter = (element // 64) * 16 + (place % 16).to(tl.int64)
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2 = c0 * 0 + tl.cast(offset_low, tl.uint32)
    c3 = c0 * 0 + tl.cast(offset_high, tl.uint32)
    k0, k1 = tl.cast(seed_low, tl.uint32), tl.cast(seed_high, tl.uint32)
    a, b = c0 * 0 + tl.cast(A, tl.uint32), c0 * 0 + tl.cast(B, tl.uint32)
    for _ in tl.static_range(10):
        upper_a, upper_b = tl.umulhi(a, c0), tl.umulhi(b, c2)
        n0, n2 = upper_b ^ c1 ^ k0, upper_a ^ c3 ^ k1
        c1, c3 = b * c2, a * c0
        c0, c2 = n0, n2
        k0, k1 = k0 + tl.cast(WEYL_A, tl.uint32), k1 + tl.cast(WEYL_B, tl.uint32)
    word = place // 16
    return tl.where(word == 0, c0, tl.where(word == 1, c1, tl.where(word == 2, c2, c3)))


@triton.jit
def is_kept(element, seed_low, seed_high, offset_low, offset_high, below):
    """Whether elements are kept: the upper 31 of their bits are above ``below``, the threshold less 1."""
    bits = random_bits(element, seed_low, seed_high, offset_low, offset_high)
    return (bits >> 1).to(tl.int32) > below
