"""Packed formats on a GPU: numbers decoded where their bytes are read (``contract/packed_formats.py`` defines them)."""

import triton.language as tl

from kernelworks.build.triton import kernel


@kernel
def half_at(at, mask):
    """The number of float16 whose two bytes begin at an address, in float32."""
    low = tl.load(at, mask=mask, other=0).to(tl.uint16)
    high = tl.load(at + 1, mask=mask, other=0).to(tl.uint16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def decoded_numbers(rows, k, mask, FORMAT: tl.constexpr):
    """The numbers k of rows of bytes, in float32; FORMAT is GGML's number of the format."""
    i = k % 32
    if FORMAT == 8:  # Q8_0
        block = rows + k // 32 * 34
        return tl.load(block + 2 + i, mask=mask, other=0).to(tl.int8, bitcast=True).to(tl.float32) * half_at(
            block, mask
        )
    elif FORMAT == 6:  # Q5_0
        block = rows + k // 32 * 22
        both = tl.load(block + 6 + i % 16, mask=mask, other=0)
        fifth = (tl.load(block + 2 + i // 8, mask=mask, other=0) >> (i % 8).to(tl.uint8)) & 1
        low = (both >> (i // 16 * 4).to(tl.uint8)) & 15
        return ((low | (fifth << 4)).to(tl.int32) - 16).to(tl.float32) * half_at(block, mask)
    else:  # Q4_0
        block = rows + k // 32 * 18
        both = tl.load(block + 2 + i % 16, mask=mask, other=0)
        return (((both >> (i // 16 * 4).to(tl.uint8)) & 15).to(tl.int32) - 8).to(tl.float32) * half_at(block, mask)
