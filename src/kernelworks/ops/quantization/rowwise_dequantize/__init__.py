"""The numbers that codes of 8 bits and a scale for each row stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.quantization.rowwise_dequantize.contract import (
    ARGUMENTS,
    CONTRACT,
    DTYPES,
    EIGHT,
    NAMES,
    reference,
)
from kernelworks.ops.quantization.rowwise_dequantize.mutants import MUTANTS

__all__ = ["OP", "rowwise_dequantize"]


def rowwise_dequantize(
    codes: Array, scale: Array, *, dtype: torch.dtype | str = torch.float32, out: Array | None = None,
    kernel: str | None = None,
) -> Array:  # fmt: skip
    """The numbers that codes of 8 bits and a scale for each row stand for: ``output = codes * scale``, by row.

    Args:
        codes: [..., K], int8 or float8_e4m3fn, contiguous.
        scale: [...], float32: of each row.
        dtype: torch.float32, torch.bfloat16 or torch.float16, or its name.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., K] of ``dtype``: the product in float32, rounded to the dtype. No gradient.

    Error bound: 0 in float32, u |output| in another dtype with unit roundoff u.
    Cost: one product an element; reads codes once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Dettmers et al. 2022, arXiv:2208.07339.
    """
    named: Any = NAMES.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype
    output: Array = OP.call(codes, scale, named, out, kernel)
    return output


def _like(codes: Tensor, scale: Tensor, dtype: str) -> Tensor:
    return codes.new_empty(codes.shape, dtype=DTYPES[dtype])


def _forward(lib: Any, codes: Tensor, scale: Tensor, dtype: str, out: Any = None) -> Tensor:
    output = _like(codes, scale, dtype) if out is None else out
    run, threads = choose_threads(lib.rowwise_dequantize, 0.2 * output.numel())
    run(output, codes.view(torch.uint8), scale.contiguous(), codes.dtype == EIGHT, threads)
    return output


def _composite(codes: Tensor, scale: Tensor, dtype: str) -> Tensor:
    return (codes.float() * scale.unsqueeze(-1)).to(DTYPES[dtype])


def _torch(*args: Any, out: Any = None) -> Any:
    return into(_composite(*args), out)


def _reference(codes: Tensor, scale: Tensor, dtype: str, out: Any = None) -> Any:
    return into(reference(codes, scale, dtype)[0].to(DTYPES[dtype]), out)


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
    forward=Pass(f"rowwise_dequantize({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor", _like),
    composite=_composite,
    mutants=MUTANTS,
)
