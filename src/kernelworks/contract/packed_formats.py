"""Packed formats: blocks of numbers in a few bits each, with what they are multiplied by, as bytes.

``FORMATS`` is the one table of them. An entry says how many numbers make a block and how many bytes it takes, and
defines both ways in float32: ``pack`` and ``unpack``. Kernels decode a block in registers (``simd/packed.hpp``,
``tile/packed_blocks.py``) and are judged by these definitions. The formats are GGUF's: bit for bit what the functions
``quantize`` and ``dequantize`` of the PyPI package ``gguf`` make, and names and numbers are GGML's.

``Blocks`` and ``PackedBytes`` are the kinds of arguments that follow from a format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import describe, need_dtype, need_tensor
from kernelworks.contract.arguments import Word
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong, is_contiguous, strides_of

__all__ = [
    "FORMATS", "Blocks", "Format", "PackedBytes", "PackedFormat", "dequantize_blocks", "quantize_blocks",
]  # fmt: skip


@dataclass(frozen=True)
class PackedFormat:
    """One format. ``pack`` takes float32 [..., block] and gives uint8 [..., nbytes]; ``unpack`` goes back.

    ``number`` is GGML's of the type. ``scales`` are the places of a block's bytes where a number of float16 begins.
    """

    name: str
    number: int
    block: int
    nbytes: int
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]
    scales: tuple[int, ...] = (0,)

    def packed_size(self, size: int) -> int:
        """The bytes that so many numbers take, which fill whole blocks."""
        return size // self.block * self.nbytes

    def unpacked_size(self, size: int) -> int:
        """The numbers in so many bytes, which are whole blocks."""
        return size // self.nbytes * self.block


# ---------------------------------------------------------------- the formats


def _half_bytes(value: Tensor) -> Tensor:
    """The two bytes of each number in float16, as a last dimension; one NaN for all."""
    bits = torch.where(value.isnan(), torch.nan, value).to(torch.float16).view(torch.int16).int()
    return torch.stack((bits & 0xFF, (bits >> 8) & 0xFF), -1).to(torch.uint8)


def _half(packed: Tensor, at: int) -> Tensor:
    """The number in float16 that begins at a byte, in float32 and with a last dimension of 1."""
    bits = packed[..., at : at + 1].int() | (packed[..., at + 1 : at + 2].int() << 8)
    return bits.to(torch.int16).view(torch.float16).float()


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1.0 / scale)


def _whole(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers as integers; 0 where there is none to say."""
    return torch.where(value.isfinite(), value, 0.0).to(dtype)


def _pack_q8_0(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1) / 127
    scaled = x * _inverse(scale)[..., None]
    size = scaled.abs()
    floor = size.floor()
    whole = scaled.sign() * (floor + (2 * (size - floor)).floor())  # to nearest, halves away from zero
    return torch.cat((_half_bytes(scale), _whole(whole, torch.int8).view(torch.uint8)), -1)


def _unpack_q8_0(packed: Tensor) -> Tensor:
    return packed[..., 2:].view(torch.int8).float() * _half(packed, 0)


def _first_largest(x: Tensor) -> Tensor:
    """The element of the largest magnitude with its sign; of several the first, and a NaN where there is one."""
    return x.gather(-1, x.abs().argmax(-1, keepdim=True))[..., 0]


def _nibbles(whole: Tensor) -> Tensor:
    """The first half of a block in the low four bits, the second half in the high ones."""
    low, high = whole.unflatten(-1, (2, -1)).unbind(-2)
    both: Tensor = low | (high << 4)
    return both


def _pack_q4_0(x: Tensor) -> Tensor:
    scale = _first_largest(x) / -8
    whole = _whole((x * _inverse(scale)[..., None] + 8.5).trunc(), torch.uint8).clamp(max=15)
    return torch.cat((_half_bytes(scale), _nibbles(whole)), -1)


def _unpack_q4_0(packed: Tensor) -> Tensor:
    nibbles = torch.cat((packed[..., 2:] & 0xF, packed[..., 2:] >> 4), -1)
    return _half(packed, 0) * (nibbles.to(torch.int8) - 8).float()


def _pack_q5_0(x: Tensor) -> Tensor:
    scale = _first_largest(x) / -16
    whole = _whole((x * _inverse(scale)[..., None] + 16.5).trunc(), torch.uint8).clamp(max=31)
    places = torch.arange(8, dtype=torch.uint8, device=x.device)
    fifth = ((whole >> 4).unflatten(-1, (4, 8)) << places).sum(-1, dtype=torch.uint8)  # bit i of number i
    return torch.cat((_half_bytes(scale), fifth, _nibbles(whole & 0xF)), -1)


def _unpack_q5_0(packed: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    fifth = ((packed[..., 2:6, None] >> places) & 1).flatten(-2) << 4
    low = torch.cat((packed[..., 6:] & 0xF, packed[..., 6:] >> 4), -1)
    return _half(packed, 0) * ((low | fifth).to(torch.int8) - 16).float()


FORMATS: Mapping[str, PackedFormat] = {
    f.name: f
    for f in (
        PackedFormat("Q8_0", 8, 32, 34, _pack_q8_0, _unpack_q8_0),
        PackedFormat("Q4_0", 2, 32, 18, _pack_q4_0, _unpack_q4_0),
        PackedFormat("Q5_0", 6, 32, 22, _pack_q5_0, _unpack_q5_0),
    )
}


def quantize_blocks(x: Tensor, format: str) -> Tensor:
    """[..., K] of floats as bytes of whole blocks: each is rounded from float32."""
    found = FORMATS[format]
    blocks = x.float().unflatten(-1, (x.shape[-1] // found.block, found.block))
    return found.pack(blocks).flatten(-2)


def dequantize_blocks(packed: Tensor, format: str) -> Tensor:
    """[..., bytes of K] as [..., K] in float32."""
    found = FORMATS[format]
    blocks = packed.unflatten(-1, (packed.shape[-1] // found.nbytes, found.nbytes))
    return found.unpack(blocks).flatten(-2)


# ---------------------------------------------------------------- arguments


class Format(Word):
    """The name of a packed format."""

    def __init__(self) -> None:
        super().__init__(*FORMATS)


def _format(name: str, given: GivenArguments) -> PackedFormat:
    """The format that another argument names, which is checked before it is believed."""
    word = given.get(name, next(iter(FORMATS)))
    Format().check(name, word, given)
    return FORMATS[word]


BLOCKED_TENSOR = T("... K")


@dataclass(frozen=True)
class Blocks:
    """A floating-point tensor whose last dimension fills whole blocks of the format that another argument names."""

    schema = "Tensor"
    format: str = "format"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        BLOCKED_TENSOR.check(name, value, given)
        found = _format(self.format, given)
        if value.shape[-1] % found.block:
            raise ValueError(
                f"{name} must have a last dimension that is a multiple of {found.block}, the block of {found.name}; "
                f"got {describe(value)}"
            )

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(2, 2 * _format(self.format, given).block)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield from BLOCKED_TENSOR.wrong(name, given)
        yield (
            f"{name} of part of a block",
            right[:, 1:],
            ValueError,
            f"{name} must have a last dimension that is a multiple",
        )

    def __str__(self) -> str:
        return f"a tensor of floats whose last dimension fills whole blocks of {self.format}, any strides"


@dataclass(frozen=True)
class PackedBytes:
    """Bytes of the format that another argument names, uint8 and contiguous, whole blocks along the last dimension.

    With ``of`` they are a matrix [N, bytes of K], and K is the last dimension of that argument.
    """

    schema = "Tensor"
    of: str = ""
    format: str = "format"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_dtype(name, value, (torch.uint8,))
        given.check_device(name, value)
        found = _format(self.format, given)
        shape = tuple(value.shape)
        if self.of:
            k = given[self.of].shape[-1]
            if len(shape) != 2 or shape[1] != found.packed_size(k):
                raise ValueError(
                    f"{name} must have shape [N, {found.packed_size(k)}], the bytes of {k} numbers in {found.name} "
                    f"({found.nbytes} for {found.block}), K {self.of}'s last dimension; got {list(shape)}"
                )
            given.name_sizes({"N": shape[0]}, name)
        elif not shape or shape[-1] % found.nbytes:
            raise ValueError(
                f"{name} must have a last dimension that is a multiple of {found.nbytes}, the bytes of a block of "
                f"{found.name}; got {describe(value)}"
            )
        if not is_contiguous(value):
            raise ValueError(f"{name} must be contiguous, got strides {list(strides_of(value))} of {describe(value)}")

    def right(self, given: GivenArguments) -> Any:
        found = _format(self.format, given)
        size = found.packed_size(given[self.of].shape[-1]) if self.of else 2 * found.nbytes
        return torch.zeros(3, size, dtype=torch.uint8)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        size = f"{name} must have shape [N, {right.shape[1]}]" if self.of else f"{name} must have a last dimension"
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of floats", right.float(), TypeError, f"{name} must have dtype uint8, got float32"
        yield f"{name} of int8", right.view(torch.int8), TypeError, f"{name} must have dtype uint8, got int8"
        yield f"{name} lacks a byte", right[:, 1:].contiguous(), ValueError, size
        if self.of:
            yield f"{name} of one row without its dimension", right[0], ValueError, size
            yield f"{name} has a block more", torch.cat((right, right), 1), ValueError, size
        else:
            yield f"{name} is a scalar tensor", right[0, 0], ValueError, size
        apart = torch.zeros(3, right.shape[1] + 1, dtype=torch.uint8)[:, :-1]
        yield f"{name} with bytes between its rows", apart, ValueError, f"{name} must be contiguous, got strides"
        yield f"{name} transposed", right.T.contiguous().T, ValueError, f"{name} must be contiguous, got strides"

    def __str__(self) -> str:
        shape = f"[N, bytes of K], K {self.of}'s last dimension" if self.of else "whole blocks along the last dimension"
        return f"uint8, contiguous, {shape}"
