"""Packed formats: blocks of numbers in a few bits each, with what they are multiplied by, as bytes.

``FORMATS`` is the one table of them. An entry says how many numbers make a block and how many bytes it takes, and
defines both ways in float32: ``pack`` and ``decode``. Kernels decode a block in registers (``simd/packed/``,
``tile/packed_blocks.py``) and are judged by these definitions. Most formats are GGUF's: bit for bit what the functions
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
from kernelworks.contract.packed_blocks import (
    DecodedBlocks,
    decode_iq4_nl,
    decode_q4_0,
    decode_q4_1,
    decode_q5_0,
    decode_q5_1,
    decode_q8_0,
    pack_q4_0,
    pack_q4_1,
    pack_q5_0,
    pack_q5_1,
    pack_q8_0,
)  # fmt: skip
from kernelworks.contract.packed_groups import decode_int4_128, decode_uint4_128, pack_int4_128, pack_uint4_128
from kernelworks.contract.packed_searches import pack_iq4_nl, pack_q4_k, pack_q5_k, pack_q6_k
from kernelworks.contract.packed_superblocks import decode_q4_k, decode_q5_k, decode_q6_k
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong, is_contiguous, strides_of

__all__ = [
    "BENCH_FORMATS", "FORMATS", "Blocks", "Format", "PackedBytes", "PackedFormat", "dequantize_blocks",
    "magnitude_of_blocks", "quantize_blocks",
]  # fmt: skip


@dataclass(frozen=True)
class PackedFormat:
    """One format. ``pack`` takes float32 [..., block] and gives uint8 [..., nbytes]; ``decode`` goes back.

    ``number`` is GGML's of the type, or above 1000 where GGML has none. ``scales`` are the places of a block's bytes
    where a number of float16 begins.
    ``searches`` says that ``pack`` tries many scales, and takes some hundred times as long as one that computes them.
    """

    name: str
    number: int
    block: int
    nbytes: int
    decode: Callable[[Tensor], DecodedBlocks]
    pack: Callable[[Tensor], Tensor]
    scales: tuple[int, ...] = (0,)
    searches: bool = False

    @property
    def of_ggml(self) -> bool:
        return self.number < 1000

    def packed_size(self, size: int) -> int:
        """The bytes that so many numbers take, which fill whole blocks."""
        return size // self.block * self.nbytes

    def unpacked_size(self, size: int) -> int:
        """The numbers in so many bytes, which are whole blocks."""
        return size // self.nbytes * self.block


# ---------------------------------------------------------------- the table


FORMATS: Mapping[str, PackedFormat] = {
    f.name: f
    for f in (
        PackedFormat("Q8_0", 8, 32, 34, decode_q8_0, pack_q8_0),
        PackedFormat("Q4_0", 2, 32, 18, decode_q4_0, pack_q4_0),
        PackedFormat("Q5_0", 6, 32, 22, decode_q5_0, pack_q5_0),
        PackedFormat("Q4_1", 3, 32, 20, decode_q4_1, pack_q4_1, (0, 2)),
        PackedFormat("Q5_1", 7, 32, 24, decode_q5_1, pack_q5_1, (0, 2)),
        PackedFormat("IQ4_NL", 20, 32, 18, decode_iq4_nl, pack_iq4_nl),
        PackedFormat("Q4_K", 12, 256, 144, decode_q4_k, pack_q4_k, (0, 2), searches=True),
        PackedFormat("Q5_K", 13, 256, 176, decode_q5_k, pack_q5_k, (0, 2), searches=True),
        PackedFormat("Q6_K", 14, 256, 210, decode_q6_k, pack_q6_k, (208,), searches=True),
        PackedFormat("INT4_128", 1001, 128, 66, decode_int4_128, pack_int4_128),
        PackedFormat("UINT4_128", 1002, 128, 68, decode_uint4_128, pack_uint4_128, (0, 2)),
    )
}
BENCH_FORMATS = ("Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q6_K")  # one of each way to decode


def quantize_blocks(x: Tensor, format: str) -> Tensor:
    """[..., K] of floats as bytes of whole blocks: each is rounded from float32."""
    found = FORMATS[format]
    blocks = x.float().unflatten(-1, (x.shape[-1] // found.block, found.block))
    return found.pack(blocks).flatten(-2)


def _decoded(packed: Tensor, format: str) -> DecodedBlocks:
    found = FORMATS[format]
    return found.decode(packed.unflatten(-1, (packed.shape[-1] // found.nbytes, found.nbytes)))


def dequantize_blocks(packed: Tensor, format: str) -> Tensor:
    """[..., bytes of K] as [..., K] in float32."""
    return _decoded(packed, format).numbers().flatten(-2)


def magnitude_of_blocks(packed: Tensor, format: str) -> Tensor:
    """The sizes of what makes each number, [..., K] in float32: where something is added, more than the number's."""
    return _decoded(packed, format).magnitude().flatten(-2)


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
