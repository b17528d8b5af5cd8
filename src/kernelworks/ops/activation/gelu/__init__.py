"""The Gaussian error linear unit, in its exact and its tanh form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.aten import aten
from kernelworks.build.rows import cpp_rows, in_float64, into, python_row, triton_row
from kernelworks.build.sharing import shared
from kernelworks.op import Op, Pass
from kernelworks.ops.activation.gelu.contract import CONTRACT, derivative, reference
from kernelworks.ops.activation.gelu.mutants import MUTANTS
from kernelworks.spelling import ABSENT, Array, Spelling

__all__ = ["OP", "gelu"]


@overload
def gelu(x: Array, *, approximate: str = "none", out: Array | None = None, row: str | None = None) -> Array: ...
@overload
def gelu(*, input: Array, approximate: str = "none", out: Array | None = None, row: str | None = None) -> Array: ...
def gelu(x: Any = ABSENT, *, approximate: str = "none", out: Any = None, row: str | None = None, **torchs: Any) -> Any:
    """Gaussian error linear unit.

    ``"none"``: ``output = x Phi(x)``, Phi the normal distribution function, ``erfc(-x / sqrt 2) / 2``.
    ``"tanh"``: ``output = x sigmoid(2 u)``, ``u = sqrt(2 / pi) (x + 0.044715 x^3)``, which is ``x (1 + tanh u) / 2``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        approximate: ``"none"`` (torch's default) or ``"tanh"``.
        out: where to write: a contiguous tensor of x's shape and dtype.
        row: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound, with r the unit roundoff of the dtype: ``r |output| + 2^-24 (8 + 8 |u| sigmoid(-2 u)) |output|`` for
    the tanh form, ``r |output| + 2^-24 (16 |output| + 2.5 x^2 |x| Phi(-|x|))`` for the other: relative to the output,
    in the negative tail too, where ``1 + tanh u`` and ``1 + erf`` cancel to nothing.
    Cost: one exponential, about 20 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``row`` cannot run.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    if torchs:
        return SPELLING((x,), torchs, {"approximate": approximate}, out, row)
    return OP.call(x, approximate, out, row)


def _forward(lib: Any, x: Tensor, approximate: str, out: Any = None) -> Tensor:
    output: Tensor = torch.empty_like(x) if out is None else out
    kernel, nth = shared(lib.gelu, x.numel())
    kernel(output, x, approximate == "tanh", nth)
    return output


def _backward(lib: Any, grad: Tensor, x: Tensor, approximate: str, needs: list[bool], out: Any = None) -> Tensor:
    grad_x = torch.empty_like(x) if out is None else out
    kernel, nth = shared(lib.gelu_backward, x.numel())
    kernel(grad_x, grad, x, approximate == "tanh", nth)
    return grad_x


def _composite(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def _aten(x: Any, approximate: str) -> Any:
    return aten("gelu", x, approximate=approximate)


def _torch(x: Tensor, approximate: str, out: Any = None) -> Any:
    return into(_composite(x, approximate), out)


def _torch_backward(grad: Tensor, x: Tensor, approximate: str, needs: list[bool], out: Any = None) -> Tensor:
    return torch.empty_like(x).copy_(torch.ops.aten.gelu_backward(grad, x, approximate=approximate))


def _reference_backward(grad: Tensor, x: Tensor, approximate: str, needs: list[bool], out: Any = None) -> Tensor:
    return torch.empty_like(x).copy_(grad.double() * derivative(x.double(), approximate))


OP = Op(
    CONTRACT,
    [
        triton_row(Path(__file__).parent),
        *cpp_rows(
            Path(__file__).parent,
            forward=_forward,
            backward=_backward,
            targets={"avx512_bf16": "simd.cpp", "avx512": "simd.cpp", "avx2": "simd.cpp", "scalar": "scalar.cpp"},
        ),
        python_row("torch", _torch, _torch_backward),
        python_row("reference", in_float64(reference), _reference_backward),
    ],
    room=__file__,
    forward=Pass(
        "gelu(Tensor x, str approximate, str? row=None) -> Tensor", lambda x, approximate: torch.empty_like(x)
    ),
    backward=Pass(
        "gelu_backward(Tensor grad_output, Tensor x, str approximate, bool[] needs, str? row=None) -> Tensor",
        lambda grad, x, approximate, needs: torch.empty_like(x),
        returns=("x",),
    ),
    composite=_composite,
    aten=_aten,
    pointwise=True,
    mutants=MUTANTS,
)

SPELLING = Spelling(
    OP, F.gelu, lambda input, *, approximate="none": (input, approximate), {"input": "x"},
    forms=({}, {"approximate": "tanh"}),
)  # fmt: skip
