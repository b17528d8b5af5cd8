"""Softmax along any dimension."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.aten import aten
from kernelworks.build.rows import cpp_rows, in_float64, into, python_row, triton_row
from kernelworks.build.sharing import shared
from kernelworks.op import Op, Pass
from kernelworks.ops.layout import as_rows
from kernelworks.ops.reduction.softmax.contract import CONTRACT, reference
from kernelworks.ops.reduction.softmax.mutants import MUTANTS
from kernelworks.spelling import ABSENT, Array, Spelling

__all__ = ["OP", "softmax"]


@overload
def softmax(x: Array, dim: int = -1, *, out: Array | None = None, row: str | None = None) -> Array: ...
@overload
def softmax(
    input: Array,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    *,
    out: Array | None = None,
    row: str | None = None,
) -> Array: ...
def softmax(  # type: ignore[misc]  # the first argument has two names
    x: Any = ABSENT, dim: Any = -1, *rest: Any, out: Any = None, row: str | None = None, **torchs: Any
) -> Any:
    """Exponentials along one dimension, scaled to sum to 1.

    ``output = e^(x - max(x)) / sum(e^(x - max(x)))`` along ``dim``.

    Args:
        x: any shape of at least one dimension, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end.
        out: where to write: a contiguous tensor like x.
        row: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's shape. A line that holds NaN or +inf, or nothing but -inf, is NaN.

    Error bound: |output - exact| <= u |output| + 2^-24 (1.05 (|d| + mean |d|) + min(N, 128) + 12) |output| + 2^-149,
    with d = x - max(x), its mean weighted by the output, u the unit roundoff of the dtype.
    Cost: 4 flop and an exponential an element (two on lines of more than 8192, and along a dimension that is not the
    last); reads x once from memory and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``row`` cannot run.
    Source: Blanchard, Higham and Higham 2021, IMA Journal of Numerical Analysis 41(4).
    """
    if torchs or rest:
        return SPELLING((x, dim, *rest), torchs, {}, out, row)
    return OP.call(x, dim, out, row)


def _laid_out(x: Tensor, dim: int) -> Tensor:
    return as_rows(x) if dim == -1 else x.contiguous()


def _forward(lib: Any, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    output = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    dim = -1 if dim + 1 in (0, x.dim()) else dim % x.dim()  # kernels take -1 for the last, else from the front
    kernel, nth = shared(lib.softmax, x.numel())
    kernel(output, _laid_out(x, dim), dim, nth)
    return output


def _backward(lib: Any, grad: Tensor, output: Tensor, dim: int, out: Any = None) -> Tensor:
    grad_x = torch.empty(output.shape, dtype=output.dtype) if out is None else out
    dim = -1 if dim + 1 in (0, output.dim()) else dim % output.dim()
    kernel, nth = shared(lib.softmax_backward, output.numel())
    kernel(grad_x, _laid_out(grad, dim), _laid_out(output, dim), dim, nth)
    return grad_x


def _composite(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def _aten(x: Any, dim: int) -> Any:
    return aten("softmax.int", x, dim)


def _torch(x: Tensor, dim: int, out: Tensor | None = None) -> Any:
    return into(_composite(x, dim), out)


def _torch_backward(
    grad: Tensor, output: Tensor, dim: int, out: Any = None, compute: torch.dtype = torch.float32
) -> Tensor:
    y, g = output.to(compute), grad.to(compute)
    return (y * (g - (y * g).sum(dim, keepdim=True))).to(output.dtype)


def _fake(x: Tensor, dim: int) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(grad: Tensor, output: Tensor, dim: int) -> Tensor:
    return output.new_empty(output.shape)


OP = Op(
    CONTRACT,
    [
        triton_row(Path(__file__).parent),
        *cpp_rows(Path(__file__).parent, forward=_forward, backward=_backward),
        python_row("torch", _torch, _torch_backward),
        python_row("reference", in_float64(reference), functools.partial(_torch_backward, compute=torch.float64)),
    ],
    room=__file__,
    forward=Pass("softmax(Tensor x, int dim, str? row=None) -> Tensor", _fake),
    backward=Pass(
        "softmax_backward(Tensor grad_output, Tensor output, int dim, str? row=None) -> Tensor",
        _fake_backward,
        returns=("x",),
    ),
    composite=_composite,
    aten=_aten,
    mutants=MUTANTS,
)


def _ours(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> tuple[Any, ...] | str:
    if dim is None:
        return "dim is for torch to guess"
    if dtype not in (None, input.dtype):
        return "dtype asks for another result than the input's"
    return input, dim


SPELLING = Spelling(OP, F.softmax, _ours, {"input": "x"})
