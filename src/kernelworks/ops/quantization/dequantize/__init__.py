"""The numbers whose bytes in a packed format are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.packed_formats import FORMATS, dequantize_blocks
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.quantization.dequantize.contract import ARGUMENTS, CONTRACT, DTYPES, NAMES, reference
from kernelworks.ops.quantization.dequantize.mutants import MUTANTS

__all__ = ["OP", "dequantize"]


def dequantize(
    packed: Array, format: str, *, dtype: torch.dtype | str = torch.float32, out: Array | None = None,
    kernel: str | None = None,
) -> Array:  # fmt: skip
    """The numbers whose bytes in a packed format are given.

    ``output = d q + m`` of whole numbers q of a few bits, the scale d of a block or of a part of it, and m, which is 0
    in formats without a least number. ``Q8_0``: 32 numbers of 8 bits. ``Q4_0``: 32 numbers of 4 bits less 8; the
    first 16 are the low halves of the bytes. The table of formats is in the README of ``quantize``.

    Args:
        packed: [..., bytes of K], uint8, contiguous: whole blocks along the last dimension.
        format: of blocks of 32 ``"Q8_0"`` (34 bytes), ``"Q4_0"`` (18), ``"Q4_1"`` (20), ``"Q5_0"`` (22), ``"Q5_1"``
            (24) or ``"IQ4_NL"`` (18); of blocks of 128 ``"INT4_128"`` (66) or ``"UINT4_128"`` (68); of blocks of 256
            ``"Q4_K"`` (144), ``"Q5_K"`` (176) or ``"Q6_K"`` (210).
        dtype: torch.float32, torch.bfloat16 or torch.float16, or its name.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., K] of ``dtype``; in float32 bit for bit what GGUF's own functions make. Bytes have no gradient.

    Error bound: 0 in float32, u |output| in another dtype with unit roundoff u.
    Cost: one product, and in formats with a least number one sum, an element; reads packed once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: gguf.quants.dequantize (PyPI gguf); ggml/src/ggml-quants.c.
    """
    named: Any = NAMES.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype
    output: Array = OP.call(packed, format, named, out, kernel)
    return output


def _like(packed: Tensor, format: str, dtype: str) -> Tensor:
    shape = (*packed.shape[:-1], FORMATS[format].unpacked_size(packed.shape[-1]))
    return packed.new_empty(shape, dtype=DTYPES[dtype])


def _forward(lib: Any, packed: Tensor, format: str, dtype: str, out: Any = None) -> Tensor:
    output = _like(packed, format, dtype) if out is None else out
    kernel, threads = choose_threads(lib.dequantize, 0.5 * output.numel())
    kernel(output, packed, FORMATS[format].number, threads)
    return output


def _composite(packed: Tensor, format: str, dtype: str) -> Tensor:
    return dequantize_blocks(packed, format).to(DTYPES[dtype])


def _torch(*args: Any, out: Any = None) -> Any:
    return into(_composite(*args), out)


def _reference(packed: Tensor, format: str, dtype: str, out: Any = None) -> Any:
    return into(reference(packed, format)[0].to(DTYPES[dtype]), out)


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, passes=("forward",)),
        *cpp_kernels(PACKAGE, forward=_forward),
        python_kernel("torch", _torch),
        python_kernel("reference", _reference),
    ],
    op_package=__file__,
    forward=Pass(f"dequantize({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor", _like),
    composite=_composite,
    mutants=MUTANTS,
)
