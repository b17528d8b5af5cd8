"""Packed formats of 4 bits whose blocks are 128 numbers, as weights of AWQ and GPTQ have them, in float32.

A head, then for each 32 numbers 16 bytes, the first half in the low nibbles. The head is the scale in float16; in
``UINT4_128`` the zero point in float16, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract.packed_blocks import (
    DecodedBlocks,
    bytes_of_half,
    first_largest,
    half_at,
    inverse,
    nibbles,
    whole_numbers,
)  # fmt: skip

__all__ = ["decode_int4_128", "decode_uint4_128", "nearest_numbers", "pack_int4_128", "pack_uint4_128", "packed_groups"]


def nearest_numbers(x: Tensor) -> Tensor:
    """To nearest, halves to even, of numbers below 2^22, by the bits of a sum; 0 of a NaN."""
    bits: Tensor = ((x + 12582912.0).view(torch.int32) & 0x007FFFFF) - 0x00400000
    return bits


def packed_groups(codes: Tensor, *head: Tensor) -> Tensor:
    """The bytes of blocks: ``codes`` [..., 128] uint8 from 0 to 15, and the numbers of the head [...]."""
    return torch.cat((*map(bytes_of_half, head), nibbles(codes.unflatten(-1, (4, 32))).flatten(-2)), -1)


def _codes(packed: Tensor) -> Tensor:
    groups = packed[..., -64:].unflatten(-1, (4, 16))
    return torch.cat((groups & 15, groups >> 4), -1).flatten(-2)


def pack_int4_128(x: Tensor) -> Tensor:
    """As ``Q4_0``, of 128 numbers."""
    scale = first_largest(x) / -8
    codes = whole_numbers((x * inverse(scale)[..., None] + 8.5).trunc(), torch.uint8).clamp(max=15)
    return packed_groups(codes, scale)


def decode_int4_128(packed: Tensor) -> DecodedBlocks:
    return DecodedBlocks((_codes(packed).to(torch.int8) - 8).float(), half_at(packed, 0))


def pack_uint4_128(x: Tensor) -> Tensor:
    """The range from the least number to the largest, 0 among them, is 15 steps; the stored scale divides.

    A block with a NaN or an infinity has NaN as scale and zero point, and codes of 0.
    """
    finite = x.isfinite().all(-1)
    x = torch.where(finite[..., None], x, 0.0)
    least, most = x.amin(-1).clamp(max=0.0), x.amax(-1).clamp(min=0.0)
    scale = ((most - least) / torch.full_like(most, 15.0)).half().float().abs()
    zero = torch.where(scale == 0, 0, (-nearest_numbers(least / scale)).clamp(0, 15))
    codes = (nearest_numbers(x / scale[..., None]) + zero[..., None]).clamp(0, 15)
    codes = torch.where((scale == 0)[..., None], 0, codes).to(torch.uint8)
    return packed_groups(codes, torch.where(finite, scale, torch.nan), torch.where(finite, zero.float(), torch.nan))


def decode_uint4_128(packed: Tensor) -> DecodedBlocks:
    scale = half_at(packed, 0)
    return DecodedBlocks(_codes(packed).float(), scale, -(scale * half_at(packed, 2)))
