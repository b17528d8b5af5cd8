"""Known-wrong versions of quantize. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.contract.packed_formats import FORMATS, quantize_blocks

__all__ = ["MUTANTS"]


def _blocks(packed: Tensor, format: str) -> Tensor:
    """[..., blocks, bytes of a block]."""
    return packed.unflatten(-1, (-1, FORMATS[format].nbytes)) if packed.numel() else packed[..., None, :]


def _after(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, format: str) -> Tensor:
        return change(_blocks(quantize_blocks(x, format), format).clone()).flatten(-2)

    return run


def _before(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, format: quantize_blocks(change(x.float()), format)


def _swapped_nibbles(blocks: Tensor) -> Tensor:
    blocks[..., 2:] = (blocks[..., 2:] >> 4) | ((blocks[..., 2:] & 15) << 4)
    return blocks


def _swapped_scale(blocks: Tensor) -> Tensor:
    blocks[..., :2] = blocks[..., :2].flip(-1)
    return blocks


def _neighbour(blocks: Tensor) -> Tensor:
    blocks[..., :2] = blocks[..., :2].roll(1, -2)
    return blocks


def _last_block(blocks: Tensor) -> Tensor:
    blocks[..., -1:, :] = 0
    return blocks


def _even(x: Tensor, format: str) -> Tensor:
    """Halves to even, or cut where 8.5 is added."""
    right = _blocks(quantize_blocks(x, format), format).clone()
    found = FORMATS[format]
    blocks = x.float().unflatten(-1, (-1, found.block)) if x.numel() else x[..., None, :]
    if format == "Q8_0" and x.numel():
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        whole = (blocks * torch.where(scale == 0, 0.0, 1 / scale)).round()
        right[..., 2:] = torch.where(whole.isfinite(), whole, 0.0).to(torch.int8).view(torch.uint8)
    elif x.numel():
        return quantize_blocks(x.float().nextafter(torch.zeros(())), format)
    return right.flatten(-2)


def _divided(x: Tensor, format: str) -> Tensor:
    """By the scale that is stored, not by the one that was found."""
    right = _blocks(quantize_blocks(x, format), format).clone()
    if format == "Q8_0" and x.numel():
        blocks = x.float().unflatten(-1, (-1, 32))
        scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
        whole = torch.where(scale == 0, 0.0, blocks / scale)
        whole = (whole.abs() + 0.5).floor().clamp(max=127) * whole.sign()
        right[..., 2:] = torch.where(whole.isfinite(), whole, 0.0).to(torch.int8).view(torch.uint8)
    return right.flatten(-2)


MUTANTS = (
    Mutant("nibbles change places", _after(_swapped_nibbles), "the first half of a block lies in the high four bits"),
    Mutant("scale's bytes change places", _after(_swapped_scale), "a scale is written with its high byte first"),
    Mutant("scale of the neighbour", _after(_neighbour), "a block has the scale of the block before it"),
    Mutant("last block", _after(_last_block), "the last block of a row is never written"),
    Mutant("halves to even", _even, "halves are rounded to even"),
    Mutant("divided by the stored scale", _divided, "the scale is rounded to float16 before it divides"),
    Mutant("no sign", _before(torch.abs), "the sign is lost"),
    Mutant("bfloat16 inside", _before(lambda x: x.bfloat16().float()), "the input is rounded to bfloat16 first"),
    Mutant("NaN swallowed", _before(lambda x: x.nan_to_num(0.0)), "NaN and infinities become numbers"),
    Mutant("zeros", _after(torch.zeros_like), "nothing is written"),
)
