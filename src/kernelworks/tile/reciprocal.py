"""The reciprocal as one instruction. ``1.0 / d`` takes five, because it also serves divisors beyond 2^126."""

import triton
import triton.language as tl

from kernelworks.build.triton import interpreting

INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def reciprocal(d):
    """1 / d within one unit in the last place for 2^-126 <= |d| <= 2^126, in float32; beyond that it may be 0."""
    if INTERPRETED:
        return 1.0 / d
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [d], dtype=tl.float32, is_pure=True, pack=1
        )
