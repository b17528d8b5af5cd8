"""Numbers of 8 bits beside a scale for each block: the states of ``adamw8bit_``.

A code of so many ``mantissa`` bits is a small float: above 2^-14 four bits of exponent and the mantissa, below it steps
of 2^-(14 + mantissa). The largest is ``2 - 2^-mantissa``, so a block's scale is its largest magnitude divided by that.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK", "FLOOR", "AVERAGE", "ROOT", "decode", "encode", "gap", "in_blocks", "scales_of", "spread"]

BLOCK = 256  # elements that share a scale
AVERAGE, ROOT = 3, 4  # bits of the mantissa: of a signed number, and of one that has no sign
LEAST = -14  # the exponent from which on codes are normal numbers
FLOOR = 2.0**-100  # a block whose largest magnitude is below has the scale 0


def decode(codes: Tensor, mantissa: int) -> Tensor:
    """The numbers of codes, float64. With 3 bits of mantissa the highest bit is the sign."""
    whole = codes.to(torch.int64)
    sign = torch.where(whole >= 128, -1.0, 1.0).double() if mantissa == AVERAGE else 1.0
    whole = whole % 128 if mantissa == AVERAGE else whole
    exponent, fraction = whole >> mantissa, whole % 2**mantissa
    normal = torch.ldexp(1.0 + fraction.double() / 2**mantissa, exponent - 15)
    return sign * torch.where(exponent == 0, fraction.double() * 2.0 ** (LEAST - mantissa), normal)


def gap(size: Tensor, mantissa: int) -> Tensor:
    """How far apart codes lie about numbers of this size."""
    _, exponent = torch.frexp(size.abs().double().clamp_min(2.0**LEAST))
    return torch.ldexp(torch.ones_like(size, dtype=torch.float64), exponent - 1 - mantissa)


def encode(numbers: Tensor, mantissa: int) -> Tensor:
    """The nearest codes, uint8; of two the even one. Of what is no number 0."""
    size = numbers.double().abs().nan_to_num(0.0, 0.0).clamp_max(2 - 2.0**-mantissa)
    step = gap(size, mantissa)
    rounded = torch.round(size / step) * step
    fraction, exponent = torch.frexp(rounded)
    normal = ((exponent + 14) << mantissa) + ((2 * fraction - 1) * 2**mantissa).to(exponent.dtype)
    code = torch.where(rounded < 2.0**LEAST, (rounded * 2.0 ** (mantissa - LEAST)).to(exponent.dtype), normal)
    negative = (numbers < 0) & (code > 0) & (mantissa == AVERAGE)
    return torch.where(negative, code + 128, code).to(torch.uint8)


def in_blocks(flat: Tensor) -> Tensor:
    """[N] as [blocks, BLOCK], with zeros behind the last."""
    blocks = -(-flat.shape[0] // BLOCK)
    return torch.nn.functional.pad(flat, (0, blocks * BLOCK - flat.shape[0])).view(blocks, BLOCK)


def scales_of(flat: Tensor, mantissa: int) -> Tensor:
    """The scale of each block: 0 of one that is nearly nothing, NaN of one that holds what is no number."""
    largest = in_blocks(flat).abs().amax(1) if flat.shape[0] else flat.new_zeros(0)
    scale = torch.where(largest < FLOOR, 0.0, largest / (2 - 2.0**-mantissa))
    return torch.where(largest.isfinite(), scale, torch.nan)


def spread(scales: Tensor, count: int) -> Tensor:
    """The scale of each of so many elements."""
    return scales.repeat_interleave(BLOCK)[:count]
