"""Codes of 8 bits and a scale for each row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.quantization.rowwise_quantize.contract import ARGUMENTS, CONTRACT, quantize_rows, reference
from kernelworks.ops.quantization.rowwise_quantize.mutants import MUTANTS

__all__ = ["OP", "rowwise_quantize"]

NAMES = {torch.int8: "int8", torch.float8_e4m3fn: "float8_e4m3fn"}


def rowwise_quantize(
    x: Array, dtype: torch.dtype | str = torch.int8, *, out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Codes of 8 bits and a scale for each row, as ``rowwise_linear`` takes them.

    ``scale = max |x| / 127`` of a row and ``codes = round(x / scale)``, halves to the even one; in float8 ``scale =
    max |x| / 448`` and ``x / scale`` rounded to the nearest number of e4m3. Maximum, quotients and rounding are
    float32's.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        dtype: torch.int8 or torch.float8_e4m3fn, or its name.
        out: where to write: contiguous tensors like the results, the codes int8, whatever ``dtype`` is.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``codes`` [..., K] of ``dtype`` (int8, its bytes, in ``out`` and of NumPy's arrays) and ``scale`` [...],
        float32. Nothing to differentiate.

    Of a row without a number other than 0, or whose scale float32 rounds to 0, all codes are 0. A NaN makes a scale
    that is NaN, an infinity one that is infinite; what has no number there is 0 in int8 and NaN in float8: decoded,
    such a row is NaN.

    Error bound: none, it is exact. Cost: three operations an element; reads x once, and once more from the cache, and
    writes a byte.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Dettmers et al. 2022, arXiv:2208.07339; Micikevicius et al. 2022, arXiv:2209.05433.
    """
    named: Any = NAMES.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype
    codes, scale = OP.call(x, named, out, kernel)
    is_float8 = named == NAMES[torch.float8_e4m3fn] and out is None and isinstance(codes, Tensor)
    return codes.view(torch.float8_e4m3fn) if is_float8 else codes, scale


def _like(x: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _forward(lib: Any, x: Tensor, dtype: str, out: Any = None) -> tuple[Tensor, Tensor]:
    codes, scale = _like(x, dtype) if out is None else out
    run, threads = choose_threads(lib.rowwise_quantize, 0.4 * math.prod(x.shape))
    run(codes, scale, as_rows(x), dtype != NAMES[torch.int8], threads)
    return codes, scale


def _torch(x: Tensor, dtype: str, out: Any = None) -> Any:
    return into(quantize_rows(x, dtype), out)


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, passes=("forward",)),
        *cpp_kernels(PACKAGE, forward=_forward),
        python_kernel("torch", _torch),
        python_kernel("reference", in_float64(reference, CONTRACT.results_in_order)),
    ],
    op_package=__file__,
    forward=Pass(f"rowwise_quantize({schema_of(ARGUMENTS)}, str? op_kernel=None) -> (Tensor, Tensor)", _like),
    composite=lambda x, dtype: quantize_rows(x, dtype),
    mutants=MUTANTS,
)
