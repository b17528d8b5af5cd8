"""Rows held in registers as chunks of columns, for kernels that read a row once and use it twice.

A row is bound by registers: the compiler widens a 16-bit row to float32 as early as it can and keeps the copy, so
that half as many programs fit a multiprocessor. Loading in chunks and ``held`` keep the row as it came.
"""

import triton
import triton.language as tl


@triton.jit
def appended(values, value):
    """The tuple with one more value."""
    return values + (value,)  # noqa: RUF005  Triton knows no unpacking


@triton.jit
def load_row(at, N, inside, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr, EVICT: tl.constexpr):
    """A tile of rows as a tuple of [ROWS, CHUNK], 0 where nothing is.

    at: [ROWS, 1] pointers to the rows; inside: [ROWS, 1], which of them exist; WHOLE: N = CHUNKS CHUNK.
    """
    cols = tl.arange(0, CHUNK)[None, :]
    row = ()
    for k in tl.static_range(CHUNKS):
        mask = inside if WHOLE else inside & (k * CHUNK + cols < N)
        row = appended(row, tl.load(at + (k * CHUNK + cols), mask=mask, other=0.0, eviction_policy=EVICT))
    return row


@triton.jit
def prefetch_row(at, N, SECTORS: tl.constexpr):
    """Asks for the 32-byte sectors of a row, so that they are in L2 when it is loaded. at: a scalar pointer."""
    sector = tl.arange(0, SECTORS) * (256 // at.dtype.element_ty.primitive_bitwidth)
    address = (at + tl.where(sector < N, sector, 0)).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def unknown_zero(positive, ASSEMBLY: tl.constexpr):
    """0 as int32, which the compiler cannot know: the sign bit of a float32 that is not negative (of NaN, any)."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "shr.s32 $0, $1, 31;", "=r,r", [positive], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.zeros_like(positive).to(tl.int32)


@triton.jit
def wide(x, zero, ASSEMBLY: tl.constexpr):
    """x [ROWS, CHUNK] in float32. zero: [ROWS], from ``unknown_zero``, or None for the first use of x.

    For the compiler the result exists from ``zero`` on, and is another value for another ``zero``. So between two uses
    it keeps x as it came, two 16-bit elements in a register, rather than their float32 copies. bfloat16 is widened by
    one instruction an element, on two pipes: a product with 2^16 for the lower half, a mask for the upper. ASSEMBLY is
    off in the interpreter, which runs none.
    """
    if ASSEMBLY and x.dtype == tl.bfloat16:
        if zero is None:
            bits = tl.inline_asm_elementwise(
                "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=tl.int32, is_pure=True, pack=2
            )
        else:
            bits = tl.inline_asm_elementwise(
                "mul.lo.u32 $0, $2, $3; and.b32 $1, $2, $5;",
                "=r,=r,r,r,r,r,r",
                [
                    x,
                    tl.broadcast_to((zero ^ 65536)[:, None], x.shape),
                    tl.broadcast_to((zero ^ -65536)[:, None], x.shape),
                ],
                dtype=tl.int32,
                is_pure=True,
                pack=2,
            )
        return bits.to(tl.float32, bitcast=True)
    elif ASSEMBLY and x.dtype == tl.float16:
        if zero is not None:
            bits = tl.broadcast_to(zero.to(tl.int16)[:, None], x.shape)
            x = tl.inline_asm_elementwise(
                "xor.b32 $0, $1, $2;", "=r,r,r", [x, bits], dtype=tl.float16, is_pure=True, pack=2
            )
        return x.to(tl.float32)
    else:
        return x.to(tl.float32)


@triton.jit
def power_of_two(largest, eps):
    """A power of two that brings the larger of ``largest`` and sqrt(eps) near 1; 1 where that is infinite or NaN."""
    top = tl.maximum(largest, tl.sqrt(eps + tl.zeros_like(largest)))
    exponent = top.to(tl.int32, bitcast=True) & 0x7F800000
    inverse = tl.minimum(tl.maximum(0x7F000000 - exponent, 0x00800000), 0x7E800000)
    return tl.where(exponent == 0x7F800000, 1.0, inverse.to(tl.float32, bitcast=True))


@triton.jit
def _add2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add4(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def sums2(a, b, axis: tl.constexpr, ASSEMBLY: tl.constexpr):
    """The sums of two tensors along an axis, in one round of barriers. One by one in the interpreter, where that is
    quicker."""
    if ASSEMBLY:
        return tl.reduce((a, b), axis, _add2)
    else:
        return tl.sum(a, axis), tl.sum(b, axis)


@triton.jit
def sums4(a, b, c, d, axis: tl.constexpr, ASSEMBLY: tl.constexpr):
    """The sums of four tensors along an axis, in one round of barriers."""
    if ASSEMBLY:
        return tl.reduce((a, b, c, d), axis, _add4)
    else:
        return tl.sum(a, axis), tl.sum(b, axis), tl.sum(c, axis), tl.sum(d, axis)


@triton.jit
def nearer(d0, x0, d1, x1):
    """For ``tl.reduce``: of two (distance, value) the one with the smaller distance, then the smaller value."""
    first = (d0 < d1) | ((d0 == d1) & (x0 < x1))
    return tl.where(first, d0, d1), tl.where(first, x0, x1)
