"""The affine map of the last dimension, matrix-vector and matrix-matrix, in torch's weight layout."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.aten import aten
from kernelworks.build.rows import cpp_rows, cuda_row, in_float64, into, python_row, triton_row
from kernelworks.build.sharing import shared
from kernelworks.op import Op, Pass
from kernelworks.ops.layout import as_rows
from kernelworks.ops.linear.linear.contract import CONTRACT, reference
from kernelworks.ops.linear.linear.mutants import MUTANTS
from kernelworks.ops.linear.linear.sm90 import guard as sm90_guard
from kernelworks.spelling import ABSENT, Array, Spelling

__all__ = ["OP", "linear"]

TARGETS = {"avx512_bf16": "simd.cpp", "avx512": "simd.cpp", "avx2": "simd.cpp", "scalar": "scalar.cpp"}


@overload
def linear(
    x: Array, weight: Array, bias: Array | None = None, *, out: Array | None = None, row: str | None = None
) -> Array: ...
@overload
def linear(
    *, input: Array, weight: Array, bias: Array | None = None, out: Array | None = None, row: str | None = None
) -> Array: ...
def linear(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, *, out: Any = None, row: str | None = None, **torchs: Any
) -> Any:
    """Affine map of the last dimension: ``output = x @ weight.T + bias``.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        weight: [N, K] of x's dtype, as torch.nn.Linear stores it. It is read where it lies, row-major or transposed;
            no copy of it is kept.
        bias: [N] of x's dtype, or None for zeros.
        out: where to write: a contiguous [..., N] tensor.
        row: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N].

    Error bound: |output - exact| <= u |output| + n 2^-24 / (1 - n 2^-24) (|x| @ |weight|.T + |bias|), u the unit
    roundoff of the dtype and n = min(K, K/8 + 384) + 10; products are exact, sums are kept in float32.
    Cost: 2 M N K flop for M rows of x; with few rows the weight's N K elements are read once, and that is the time.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``row`` cannot run.
    Source: torch.nn.functional.linear; Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.
    """
    if torchs:
        return SPELLING((x, weight, bias), torchs, {}, out, row)
    return OP.call(x, weight, bias, out, row)


def _weight(weight: Tensor) -> Tensor:
    return weight if 1 in weight.stride() else weight.contiguous()


def _nanoseconds(x: Tensor, weight: Tensor) -> float:
    """Of one thread: for few rows the weight's elements come from memory, for many a core does 16 products in one."""
    return weight.numel() * max(1.0, x.numel() / (16 * max(1, weight.shape[1])))


def _forward(lib: Any, x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    output = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype) if out is None else out
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    kernel, nth = shared(lib.linear, _nanoseconds(x, weight))
    kernel(output, as_rows(x), _weight(weight), bias, nth)
    return output


def _backward(
    lib: Any, grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    took, grad_rows = _nanoseconds(x, weight), as_rows(grad)
    grad_x = x.new_empty(x.shape if needs[0] else 0) if out is None else out[0]
    grad_weight = weight.new_empty(weight.shape if needs[1] else 0)
    grad_bias = weight.new_empty(weight.shape[:1] if needs[2] else 0)
    if needs[0]:
        kernel, nth = shared(lib.linear_grad_x, took)
        kernel(grad_x, grad_rows, _weight(weight), nth)
    if needs[1]:
        kernel, nth = shared(lib.linear_grad_weight, took)
        kernel(grad_weight, grad_rows, as_rows(x), nth)
    if needs[2]:
        kernel, nth = shared(lib.linear_grad_bias, grad.numel())
        kernel(grad_bias, grad_rows, nth)
    return grad_x, grad_weight, grad_bias


def _composite(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _aten(x: Any, weight: Any, bias: Any) -> Any:
    return aten("linear", x, weight, bias)


def _torch(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    return into(_composite(x, weight, bias), out)


def _torch_backward(
    grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None, compute: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    rows = math.prod(x.shape[:-1])
    g = grad.reshape(rows, weight.shape[0]).to(compute or grad.dtype)
    grad_x = g @ weight.to(g.dtype) if needs[0] else g.new_empty(0)
    grad_weight = g.T @ x.reshape(rows, x.shape[-1]).to(g.dtype) if needs[1] else g.new_empty(0)
    grad_bias = g.sum(0) if needs[2] else g.new_empty(0)
    return (
        grad_x.reshape(x.shape if needs[0] else 0).to(x.dtype),
        grad_weight.to(x.dtype),
        grad_bias.to(x.dtype),
    )


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _fake_backward(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if needs[0] else 0),
        weight.new_empty(weight.shape if needs[1] else 0),
        weight.new_empty(weight.shape[:1] if needs[2] else 0),
    )


OP = Op(
    CONTRACT,
    [
        cuda_row(Path(__file__).parent, guard=sm90_guard),
        triton_row(Path(__file__).parent),
        *cpp_rows(Path(__file__).parent, forward=_forward, backward=_backward, targets=TARGETS),
        python_row("torch", _torch, _torch_backward),
        python_row("reference", in_float64(reference), functools.partial(_torch_backward, compute=torch.float64)),
    ],
    room=__file__,
    forward=Pass("linear(Tensor x, Tensor weight, Tensor? bias, str? row=None) -> Tensor", _fake),
    backward=Pass(
        "linear_backward(Tensor grad_output, Tensor x, Tensor weight, bool[] needs, str? row=None) "
        "-> (Tensor, Tensor, Tensor)",
        _fake_backward,
        returns=("x", "weight", "bias"),
        reads={"x": ("weight",), "weight": ("x",), "bias": ()},
    ),
    composite=_composite,
    aten=_aten,
    mutants=MUTANTS,
)

SPELLING = Spelling(OP, F.linear, lambda input, weight, bias=None: (input, weight, bias), {"input": "x"})
