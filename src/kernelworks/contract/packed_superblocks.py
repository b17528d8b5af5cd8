"""Packed formats whose blocks are 256 numbers: GGUF's K-quants, in float32.

A block has scales of a few bits for parts of it, and numbers of float16 that scale those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract.packed_blocks import DecodedBlocks, half_at

__all__ = ["decode_q4_k", "decode_q5_k", "decode_q6_k"]


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima in the 12 bytes from byte 4 on, [..., 8] each.

    Of the first four the lower six bits of bytes 0 to 3 and of 4 to 7; of the others the nibbles of bytes 8 to 11, and
    the upper two bits of those.
    """
    scales, minima, nibbles = packed[..., 4:8], packed[..., 8:12], packed[..., 12:16]
    return (
        torch.cat((scales & 63, (nibbles & 15) | (scales >> 6 << 4)), -1),
        torch.cat((minima & 63, (nibbles >> 4) | (minima >> 6 << 4)), -1),
    )


def _bits(packed: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """[..., bytes] as [..., shift, byte]: bits from each shift on."""
    return packed[..., None, :] >> torch.tensor(shifts, dtype=torch.uint8, device=packed.device)[:, None] & mask


def _low(packed: Tensor, size: int) -> Tensor:
    """Low nibbles of ``size`` bytes, then their high ones, and so on."""
    return _bits(packed.unflatten(-1, (-1, size)), (0, 4), 15).flatten(-3)


def _ranged(packed: Tensor, codes: Tensor) -> DecodedBlocks:
    scales, minima = _six_bits(packed)
    return DecodedBlocks(codes.float(), half_at(packed, 0) * scales.float(), -(half_at(packed, 2) * minima.float()))


def decode_q4_k(packed: Tensor) -> DecodedBlocks:
    return _ranged(packed, _low(packed[..., 16:], 32))


def decode_q5_k(packed: Tensor) -> DecodedBlocks:
    fifth = _bits(packed[..., 16:48], tuple(range(8)), 1).flatten(-2)
    return _ranged(packed, _low(packed[..., 48:], 32) | fifth << 4)


def decode_q6_k(packed: Tensor) -> DecodedBlocks:
    """In each half of 128 numbers the nibbles of 64 bytes, and two more bits of each from 32 bytes."""
    upper = _bits(packed[..., 128:192].unflatten(-1, (2, 32)), (0, 2, 4, 6), 3).flatten(-3)
    codes = (_low(packed[..., :128], 64) | upper << 4).to(torch.int8) - 32
    return DecodedBlocks(codes.float(), half_at(packed, 208) * packed[..., 192:208].view(torch.int8).float())
