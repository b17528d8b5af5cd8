"""Packed formats whose blocks are 32 numbers: GGUF's, both ways, in float32.

Each pair of functions takes [..., 32] of float32 to uint8 [..., bytes of a block], and back to ``DecodedBlocks``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "LEVELS", "DecodedBlocks", "bytes_of_half", "decode_iq4_nl", "decode_q4_0", "decode_q4_1", "decode_q5_0",
    "decode_q5_1", "decode_q8_0", "first_largest", "half_at", "inverse", "nibbles", "pack_q4_0", "pack_q4_1",
    "pack_q5_0", "pack_q5_1", "pack_q8_0", "quotient", "whole_numbers",
]  # fmt: skip

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4_NL


class DecodedBlocks(NamedTuple):
    """What bytes say: whole numbers [..., block], their scales and what is added to each.

    ``scale`` and ``offset`` are [..., parts of the block]; the parts are equal and follow one another. A number is
    ``scale code + offset`` in float32, where the product is exact.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None = None

    def products(self) -> Tensor:
        """The products, [..., block]."""
        parts = self.codes.unflatten(-1, (self.scale.shape[-1], self.codes.shape[-1] // self.scale.shape[-1]))
        scaled: Tensor = (parts * self.scale[..., None]).flatten(-2)
        return scaled

    def offsets(self) -> Tensor | None:
        """What is added to each number, [..., block]."""
        if self.offset is None:
            return None
        return self.offset.repeat_interleave(self.codes.shape[-1] // self.offset.shape[-1], -1)

    def numbers(self) -> Tensor:
        added = self.offsets()
        return self.products() if added is None else self.products() + added

    def magnitude(self) -> Tensor:
        """The sizes of what is summed: more than that of the number where an offset has the other sign."""
        added = self.offsets()
        return self.products().abs() if added is None else self.products().abs() + added.abs()


# ---------------------------------------------------------------- bytes


def bytes_of_half(value: Tensor) -> Tensor:
    """The two bytes of each number in float16, as a last dimension; one NaN for all."""
    bits = torch.where(value.isnan(), torch.nan, value).to(torch.float16).view(torch.int16).int()
    return torch.stack((bits & 0xFF, (bits >> 8) & 0xFF), -1).to(torch.uint8)


def half_at(packed: Tensor, at: int) -> Tensor:
    """The number in float16 that begins at a byte, in float32 and with a last dimension of 1."""
    bits = packed[..., at : at + 1].int() | (packed[..., at + 1 : at + 2].int() << 8)
    return bits.to(torch.int16).view(torch.float16).float()


def quotient(number: float, tensor: Tensor) -> Tensor:
    """A number over a tensor, rounded once: torch multiplies with the inverse, on a GPU also for a tensor over one."""
    return torch.full_like(tensor, number) / tensor


def inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1.0 / scale)


def whole_numbers(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers as integers; 0 where there is none to say."""
    return torch.where(value.isfinite(), value, 0.0).to(dtype)


def nibbles(whole: Tensor) -> Tensor:
    """The first half of a block in the low four bits, the second half in the high ones."""
    low, high = whole.unflatten(-1, (2, -1)).unbind(-2)
    both: Tensor = low | (high << 4)
    return both


def _of_nibbles(packed: Tensor) -> Tensor:
    """The numbers of 4 bits in the last 16 bytes."""
    return torch.cat((packed[..., -16:] & 0xF, packed[..., -16:] >> 4), -1)


def _fifth_bits(whole: Tensor) -> Tensor:
    """Four bytes: bit i of number i."""
    places = torch.arange(8, dtype=torch.uint8, device=whole.device)
    bits: Tensor = ((whole >> 4).unflatten(-1, (4, 8)) << places).sum(-1, dtype=torch.uint8)
    return bits


def _of_fifth_bits(packed: Tensor) -> Tensor:
    """Those bits, in the four bytes before the last 16, at their places in the numbers."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[..., -20:-16, None] >> places) & 1).flatten(-2) << 4


# ---------------------------------------------------------------- formats


def pack_q8_0(x: Tensor) -> Tensor:
    largest = x.abs().amax(-1)
    scale = largest / torch.full_like(largest, 127.0)  # a tensor: rounded once on a GPU, too
    scaled = x * inverse(scale)[..., None]
    size = scaled.abs()
    floor = size.floor()
    whole = scaled.sign() * (floor + (2 * (size - floor)).floor())  # to nearest, halves away from zero
    return torch.cat((bytes_of_half(scale), whole_numbers(whole, torch.int8).view(torch.uint8)), -1)


def decode_q8_0(packed: Tensor) -> DecodedBlocks:
    return DecodedBlocks(packed[..., 2:].view(torch.int8).float(), half_at(packed, 0))


def first_largest(x: Tensor) -> Tensor:
    """The element of the largest magnitude with its sign; of several the first, and a NaN where there is one."""
    return x.gather(-1, x.abs().argmax(-1, keepdim=True))[..., 0]


def pack_q4_0(x: Tensor) -> Tensor:
    scale = first_largest(x) / -8
    whole = whole_numbers((x * inverse(scale)[..., None] + 8.5).trunc(), torch.uint8).clamp(max=15)
    return torch.cat((bytes_of_half(scale), nibbles(whole)), -1)


def decode_q4_0(packed: Tensor) -> DecodedBlocks:
    return DecodedBlocks((_of_nibbles(packed).to(torch.int8) - 8).float(), half_at(packed, 0))


def pack_q5_0(x: Tensor) -> Tensor:
    scale = first_largest(x) / -16
    whole = whole_numbers((x * inverse(scale)[..., None] + 16.5).trunc(), torch.uint8).clamp(max=31)
    return torch.cat((bytes_of_half(scale), _fifth_bits(whole), nibbles(whole & 0xF)), -1)


def decode_q5_0(packed: Tensor) -> DecodedBlocks:
    whole = _of_nibbles(packed) | _of_fifth_bits(packed)
    return DecodedBlocks((whole.to(torch.int8) - 16).float(), half_at(packed, 0))


def _ranged(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The bytes of scale and least number, and whole numbers from 0 to ``most``. Of equal numbers the first is the
    least (-0 is 0), and a NaN where there is one."""
    least = x.gather(-1, x.argmin(-1, keepdim=True))
    scale = (x.amax(-1, keepdim=True) - least) / torch.full_like(least, most)
    whole = whole_numbers(((x - least) * inverse(scale) + 0.5).trunc(), torch.uint8).clamp(max=most)
    return torch.cat((bytes_of_half(scale[..., 0]), bytes_of_half(least[..., 0])), -1), whole


def pack_q4_1(x: Tensor) -> Tensor:
    head, whole = _ranged(x, 15)
    return torch.cat((head, nibbles(whole)), -1)


def decode_q4_1(packed: Tensor) -> DecodedBlocks:
    return DecodedBlocks(_of_nibbles(packed).float(), half_at(packed, 0), half_at(packed, 2))


def pack_q5_1(x: Tensor) -> Tensor:
    head, whole = _ranged(x, 31)
    return torch.cat((head, _fifth_bits(whole), nibbles(whole & 0xF)), -1)


def decode_q5_1(packed: Tensor) -> DecodedBlocks:
    whole = _of_nibbles(packed) | _of_fifth_bits(packed)
    return DecodedBlocks(whole.float(), half_at(packed, 0), half_at(packed, 2))


def decode_iq4_nl(packed: Tensor) -> DecodedBlocks:
    levels = torch.tensor(LEVELS, dtype=torch.float32, device=packed.device)
    return DecodedBlocks(levels[_of_nibbles(packed).int()], half_at(packed, 0))
