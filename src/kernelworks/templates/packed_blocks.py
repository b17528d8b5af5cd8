"""What ops of packed formats share: bytes to try them on, and ways to get a block wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from kernelworks.contract.packed_blocks import DecodedBlocks
from kernelworks.contract.packed_formats import FORMATS, PackedFormat, dequantize_blocks, quantize_blocks

__all__ = ["KINDS", "WRONG_DECODERS", "draw_packed", "edited_decoder"]

# Kinds of blocks: rounded normal numbers; any bytes below scales of either sign; scales that are subnormal in float16;
# scales of every special value; nothing but zeros; blocks of one number each. NaN is drawn where the name says so.
KINDS = ("normal", "bytes", "subnormal", "nan scales", "zeros", "equal")
ROWS, LARGE = 64, 2**20
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 65504.0, 2.0**-24)


def draw_packed(
    generator: Generator, shape: tuple[int, ...], format: str, kind: str = "normal", scale: float = 1.0
) -> Tensor:
    """The bytes of so many numbers: [..., K] gives [..., bytes of K]. Of a large matrix rows come again and again:
    rounding them all takes longer than what it is drawn for."""
    found = FORMATS[format]
    if len(shape) == 2 and shape[0] > ROWS and shape[0] * shape[1] > LARGE:
        few = draw_packed(generator, (ROWS, shape[1]), format, kind, scale)
        return few.repeat(-(-shape[0] // ROWS), 1)[: shape[0]].contiguous()
    x = torch.randn(shape, generator=generator) * scale
    if kind == "zeros":
        x = torch.zeros(shape)
    elif kind == "equal" and x.numel():
        x = x[..., :1].expand(shape).contiguous()
    if kind in ("normal", "zeros", "equal") and not found.searches:
        return quantize_blocks(x, format)
    size = (*shape[:-1], found.packed_size(shape[-1]))
    blocks = torch.randint(0, 256, size, generator=generator).to(torch.uint8).view(-1, found.nbytes)
    if kind == "zeros":
        return torch.zeros(size, dtype=torch.uint8)
    if kind == "equal" and len(blocks):
        blocks[:] = blocks[:, :1]
    for place in found.scales:
        drawn = torch.randn(len(blocks), generator=generator) * scale * 0.02
        if kind == "subnormal":
            drawn = drawn.clamp(-1, 1) * 2.0**-14
        elif kind == "nan scales":
            for i in range(0, len(blocks), 3):
                drawn[i] = SPECIAL[i // 3 % len(SPECIAL)]
        blocks[:, place : place + 2] = drawn.half()[:, None].view(torch.uint8)
    return blocks.view(size)


# ---------------------------------------------------------------- wrong decoders

Decoder = Callable[[Tensor, str], Tensor]


def edited_decoder(change: Callable[[Tensor, PackedFormat], None]) -> Decoder:
    """The numbers of bytes that were changed: [..., blocks, bytes of a block], in place."""

    def decode(packed: Tensor, format: str) -> Tensor:
        found = FORMATS[format]
        blocks = packed.clone().unflatten(-1, (packed.shape[-1] // found.nbytes, found.nbytes))
        if blocks.numel():
            change(blocks, found)
        return dequantize_blocks(blocks.flatten(-2), format)

    return decode


def _payload(found: PackedFormat) -> list[int]:
    """The places of the bytes of a block that are not its scales of float16."""
    scales = {place + byte for place in found.scales for byte in (0, 1)}
    return [place for place in range(found.nbytes) if place not in scales]


def _nibbles(blocks: Tensor, found: PackedFormat) -> None:
    payload = blocks[..., _payload(found)]
    blocks[..., _payload(found)] = (payload >> 4) | ((payload & 15) << 4)


def _neighbour(blocks: Tensor, found: PackedFormat) -> None:
    scale = slice(found.scales[0], found.scales[0] + 2)
    blocks[..., scale] = blocks[..., scale].roll(1, -2)


def _bytes_of_scale(blocks: Tensor, found: PackedFormat) -> None:
    scale = slice(found.scales[0], found.scales[0] + 2)
    blocks[..., scale] = blocks[..., scale].flip(-1)


def _last(blocks: Tensor, found: PackedFormat) -> None:
    blocks[..., -1, :] = 0


def _sign(blocks: Tensor, found: PackedFormat) -> None:
    blocks[..., _payload(found)] &= 0x7F


def _scale_sign(blocks: Tensor, found: PackedFormat) -> None:
    blocks[..., found.scales[0] + 1] &= 0x7F


def _one_block_on(blocks: Tensor, found: PackedFormat) -> None:
    blocks.copy_(blocks.roll(-1, -2))


def _without_zero(packed: Tensor, format: str) -> Tensor:
    def cleared(blocks: Tensor, found: PackedFormat) -> None:
        blocks[..., _payload(found)] = 0

    zero = edited_decoder(cleared)(packed, format)
    return dequantize_blocks(packed, format) - torch.where(zero.isfinite(), zero, 0.0)


def _interleaved(packed: Tensor, format: str) -> Tensor:
    numbers, block = dequantize_blocks(packed, format), FORMATS[format].block
    if not numbers.numel():
        return numbers
    turned: Tensor = numbers.unflatten(-1, (-1, 2, block // 2)).mT
    return turned.flatten(-3)


def _changed(change: Callable[[DecodedBlocks], DecodedBlocks]) -> Decoder:
    """The numbers of what a decoder found, changed before codes are scaled."""

    def decode(packed: Tensor, format: str) -> Tensor:
        found = FORMATS[format]
        blocks = packed.unflatten(-1, (packed.shape[-1] // found.nbytes, found.nbytes))
        return change(found.decode(blocks)).numbers().flatten(-2)

    return decode


def _negated(found: DecodedBlocks) -> DecodedBlocks:
    return found._replace(offset=None if found.offset is None else -found.offset)


WRONG_DECODERS: Mapping[str, tuple[Decoder, str]] = {
    "nibbles change places": (edited_decoder(_nibbles), "the high four bits are taken for the first half of a block"),
    "nibbles interleaved": (_interleaved, "the two numbers of a byte are taken for neighbours"),
    "zero point forgotten": (_without_zero, "what is taken from each number (8 in Q4_0) is not"),
    "scale of the neighbour": (edited_decoder(_neighbour), "a block is multiplied by the scale of the block before it"),
    "scale's bytes change places": (edited_decoder(_bytes_of_scale), "a scale is read with its high byte first"),
    "sign lost": (edited_decoder(_sign), "the highest bit of each byte is dropped"),
    "scale's sign lost": (edited_decoder(_scale_sign), "a scale is taken for positive"),
    "last block dropped": (edited_decoder(_last), "the last block of each row is left out"),
    "offset forgotten": (_changed(lambda d: d._replace(offset=None)), "the least number of a block is not added"),
    "offset taken away": (_changed(_negated), "the least number is subtracted where it is added, or the other way"),
    "scale of the next part": (
        _changed(lambda d: d._replace(scale=d.scale.roll(-1, -1))),
        "a part of a block has the scale of the next",
    ),
    "one block on": (edited_decoder(_one_block_on), "each block is read where the next one lies"),
}
