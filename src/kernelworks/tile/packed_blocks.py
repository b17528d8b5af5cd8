"""Packed formats on a GPU: numbers decoded where their bytes are read (``contract/packed_formats.py`` defines them).

Each function takes rows of bytes and which numbers k of them, and finds for each its byte and its scale.
"""

import triton.language as tl

from kernelworks.build.triton import kernel


@kernel
def byte_at(at, mask):
    return tl.load(at, mask=mask, other=0)


@kernel
def half_at(at, mask):
    """The number of float16 whose two bytes begin at an address, in float32."""
    low, high = byte_at(at, mask).to(tl.uint16), byte_at(at + 1, mask).to(tl.uint16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def four_bits(at, i, mask):
    """Number i of 32 in 16 bytes: the first 16 in the low nibbles."""
    return (byte_at(at + i % 16, mask) >> (i // 16 * 4).to(tl.uint8)) & 15


@kernel
def five_bits(at, i, mask):
    """Number i of 32: the fifth bits in 4 bytes, then the lower four in 16."""
    fifth = (byte_at(at + i // 8, mask) >> (i % 8).to(tl.uint8)) & 1
    return four_bits(at + 4, i, mask) | (fifth << 4)


@kernel
def level(code):
    """The level of IQ4_NL that 4 bits choose. Bytes of the second constant are the sizes of the eight negative ones,
    those of the first the eight positive ones."""
    upper = code >= 8
    levels = tl.where(upper, 0x7159453526190D01, 0x0A1623314153687F)
    size = ((levels >> (code % 8 * 8).to(tl.int64)) & 255).to(tl.float32)
    return tl.where(upper, size, -size)


@kernel
def numbers_of_blocks(rows, k, mask, FORMAT: tl.constexpr):
    """Of formats whose blocks are 32 numbers."""
    i = k % 32
    if FORMAT == 8:  # Q8_0
        block = rows + k // 32 * 34
        return byte_at(block + 2 + i, mask).to(tl.int8, bitcast=True).to(tl.float32) * half_at(block, mask)
    elif FORMAT == 2:  # Q4_0
        block = rows + k // 32 * 18
        return (four_bits(block + 2, i, mask).to(tl.int32) - 8).to(tl.float32) * half_at(block, mask)
    elif FORMAT == 6:  # Q5_0
        block = rows + k // 32 * 22
        return (five_bits(block + 2, i, mask).to(tl.int32) - 16).to(tl.float32) * half_at(block, mask)
    elif FORMAT == 3:  # Q4_1
        block = rows + k // 32 * 20
        return four_bits(block + 4, i, mask).to(tl.float32) * half_at(block, mask) + half_at(block + 2, mask)
    elif FORMAT == 7:  # Q5_1
        block = rows + k // 32 * 24
        return five_bits(block + 4, i, mask).to(tl.float32) * half_at(block, mask) + half_at(block + 2, mask)
    else:  # IQ4_NL
        block = rows + k // 32 * 18
        return level(four_bits(block + 2, i, mask)) * half_at(block, mask)


@kernel
def numbers_of_ranges(rows, k, mask, BYTES: tl.constexpr):
    """Of Q4_K (144 bytes for 256 numbers) and Q5_K (176): a scale and a minimum of 6 bits for each 32 numbers."""
    i = k % 256
    block, group = rows + k // 256 * BYTES, i // 32
    first, low_bits = group < 4, byte_at(block + 12 + group % 4, mask)
    scale, minimum = byte_at(block + 4 + group % 4, mask), byte_at(block + 8 + group % 4, mask)
    scale = tl.where(first, scale & 63, (low_bits & 15) | ((scale >> 6) << 4)).to(tl.float32) * half_at(block, mask)
    minimum = tl.where(first, minimum & 63, (low_bits >> 4) | ((minimum >> 6) << 4)).to(tl.float32)
    code = (byte_at(block + BYTES - 128 + i // 64 * 32 + i % 32, mask) >> (group % 2 * 4).to(tl.uint8)) & 15
    if BYTES == 176:
        code = code | (((byte_at(block + 16 + i % 32, mask) >> group.to(tl.uint8)) & 1) << 4)
    return code.to(tl.float32) * scale - minimum * half_at(block + 2, mask)


@kernel
def numbers_of_q6_k(rows, k, mask):
    """A scale of 8 bits for each 16 numbers."""
    i = k % 256
    block, half, group = rows + k // 256 * 210, i // 128, i // 32 % 4
    low = (byte_at(block + half * 64 + i % 64, mask) >> (group // 2 * 4).to(tl.uint8)) & 15
    upper = (byte_at(block + 128 + half * 32 + i % 32, mask) >> (group * 2).to(tl.uint8)) & 3
    scale = byte_at(block + 192 + i // 16, mask).to(tl.int8, bitcast=True).to(tl.float32) * half_at(block + 208, mask)
    return ((low | (upper << 4)).to(tl.int32) - 32).to(tl.float32) * scale


@kernel
def numbers_of_groups(rows, k, mask, HEAD: tl.constexpr):
    """Of INT4_128 (a head of 2 bytes) and UINT4_128 (4, the zero point in the last two)."""
    block, i = rows + k // 128 * (HEAD + 64), k % 128
    code, scale = four_bits(block + HEAD + i // 32 * 16, i % 32, mask).to(tl.int32), half_at(block, mask)
    if HEAD == 2:
        return (code - 8).to(tl.float32) * scale
    return code.to(tl.float32) * scale - scale * half_at(block + 2, mask)


@kernel
def decoded_numbers(rows, k, mask, FORMAT: tl.constexpr):
    """The numbers k of rows of bytes, in float32; FORMAT is the number of the format."""
    if FORMAT == 12:  # Q4_K
        return numbers_of_ranges(rows, k, mask, 144)
    elif FORMAT == 13:  # Q5_K
        return numbers_of_ranges(rows, k, mask, 176)
    elif FORMAT == 14:  # Q6_K
        return numbers_of_q6_k(rows, k, mask)
    elif FORMAT == 1001:  # INT4_128
        return numbers_of_groups(rows, k, mask, 2)
    elif FORMAT == 1002:  # UINT4_128
        return numbers_of_groups(rows, k, mask, 4)
    else:
        return numbers_of_blocks(rows, k, mask, FORMAT)
