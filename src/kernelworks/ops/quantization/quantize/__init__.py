"""Numbers as the bytes of a packed format."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.packed_formats import FORMATS, quantize_blocks
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.quantization.quantize.contract import ARGUMENTS, CONTRACT, reference
from kernelworks.ops.quantization.quantize.mutants import MUTANTS

__all__ = ["OP", "quantize"]


def quantize(x: Array, format: str, *, out: Array | None = None, kernel: str | None = None) -> Array:
    """The bytes of a packed format: each block of numbers along the last dimension with scales of its own.

    ``Q8_0``: ``d = max |x| / 127`` in float16 and 32 numbers ``round(x / d)`` of 8 bits, halves away from zero.
    ``Q4_0``: ``d = m / -8``, m the number of the largest magnitude, and 32 numbers ``floor(x / d + 8.5)`` of 4 bits, at
    most 15. ``Q5_0``: the same with -16, 16.5 and 31. ``Q4_1``: ``d = (max x - min x) / 15``, ``m = min x``, and 32
    numbers ``floor((x - m) / d + 0.5)`` of 4 bits. ``Q5_1``: the same with 31.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides; K fills whole blocks.
        format: of blocks of 32 ``"Q8_0"`` (34 bytes), ``"Q4_0"`` (18), ``"Q4_1"`` (20), ``"Q5_0"`` (22), ``"Q5_1"``
            (24) or ``"IQ4_NL"`` (18); of blocks of 128 ``"INT4_128"`` (66) or ``"UINT4_128"`` (68); of blocks of 256
            ``"Q4_K"`` (144), ``"Q5_K"`` (176) or ``"Q6_K"`` (210), which search for their scales.
        out: where to write: a contiguous uint8 tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., bytes of K], uint8, bit for bit what GGUF's own functions make
        (``quantize_row_*_ref`` where they search). Nothing to differentiate.

    A block with a NaN has a scale that is NaN, one with an infinity a scale that is infinite; what has no number there
    is 0; in formats that search both make scales that are NaN. A scale beyond float16 is infinite, one below it 0.

    Error bound: none, it is exact. Cost: four operations an element, or a hundred to two thousand where a format
    searches; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: gguf.quants.quantize (PyPI gguf); ggml/src/ggml-quants.c.
    """
    output: Array = OP.call(x, format, out, kernel)
    return output


def _shape(x: Tensor, format: str) -> tuple[int, ...]:
    return (*x.shape[:-1], FORMATS[format].packed_size(x.shape[-1]))


def _forward(lib: Any, x: Tensor, format: str, out: Any = None) -> Tensor:
    output: Tensor = torch.empty(_shape(x, format), dtype=torch.uint8) if out is None else out
    kernel, threads = choose_threads(lib.quantize, 2.0 * math.prod(x.shape))
    kernel(output, as_rows(x), FORMATS[format].number, threads)
    return output


def _torch(x: Tensor, format: str, out: Any = None) -> Any:
    return into(quantize_blocks(x, format), out)


OP = Op(
    CONTRACT,
    [
        *cpp_kernels(Path(__file__).parent, forward=_forward),
        python_kernel("torch", _torch),
        python_kernel("reference", in_float64(reference)),
    ],
    op_package=__file__,
    forward=Pass(
        f"quantize({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda x, format: x.new_empty(_shape(x, format), dtype=torch.uint8),
    ),
    composite=lambda x, format: quantize_blocks(x, format),
    mutants=MUTANTS,
)
