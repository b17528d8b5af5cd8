"""Root mean square layer normalisation, with the residual addition fused."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.aten import aten
from kernelworks.build.rows import cpp_rows, in_float64, into, python_row, triton_row
from kernelworks.build.sharing import shared
from kernelworks.contract import Request
from kernelworks.op import Op, Pass
from kernelworks.ops.layout import as_rows
from kernelworks.ops.norm.rms_norm.contract import CONTRACT, reference
from kernelworks.ops.norm.rms_norm.mutants import MUTANTS
from kernelworks.spelling import ABSENT, Array, Spelling, last_alone

__all__ = ["OP", "rms_norm"]


LONGEST_GPU_ROW = 65536  # elements; what a program keeps of longer rows mostly goes to memory


@overload
def rms_norm(
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    residual: None = None,
    out: Array | None = None,
    row: str | None = None,
) -> Array: ...
@overload
def rms_norm(
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    residual: Array,
    out: tuple[Array, Array] | None = None,
    row: str | None = None,
) -> tuple[Array, Array]: ...
@overload
def rms_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    eps: float | None = None,
    *,
    residual: None = None,
    out: Array | None = None,
    row: str | None = None,
) -> Array: ...
@overload
def rms_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    eps: float | None = None,
    *,
    residual: Array,
    out: tuple[Array, Array] | None = None,
    row: str | None = None,
) -> tuple[Array, Array]: ...
def rms_norm(
    x: Any = ABSENT,
    weight: Any = ABSENT,
    /,
    *rest: Any,
    eps: Any = ABSENT,
    residual: Any = None,
    out: Any = None,
    row: str | None = None,
    **named: Any,
) -> Any:
    """Root mean square normalisation of the last dimension.

    ``output = s / sqrt(mean(s^2, -1) + eps) * weight`` with ``s = x + residual`` (``s = x`` without a residual).

    Args:
        x: [..., N], float32, bfloat16 or float16, any strides.
        weight: [N] of x's dtype, or None for ones.
        eps: added to the mean of squares. No default: frameworks disagree.
        residual: [..., N] like x. With it the sum is returned too, for the next residual.
        out: where to write: a contiguous tensor like x, or a pair of them where there is a residual.
        row: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N]; with a residual ``(output, s)``.

    Error bound: |output - exact| <= u |output| + (N/64 + 12) 2^-24 |output|, u the unit roundoff of the dtype; sums are
    kept in float32 (float64 where the squares leave its range).
    Cost: 4 N flop a row; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``row`` cannot run.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    if named or rest:
        if eps is not ABSENT:
            named["eps"] = eps
        if residual is not None:
            named["residual"] = residual
        return SPELLING.either((x, weight, *rest), named, out, row)
    return OP.call(x, weight, eps, residual, out, row)


def _forward(lib: Any, x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None, out: Any = None) -> Any:
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    kernel, nth = shared(lib.rms_norm, x.numel())
    if residual is None:
        output = torch.empty(x.shape, dtype=x.dtype) if out is None else out
        kernel(output, None, as_rows(x), None, weight, eps, nth)
        return output
    output, sum_ = (torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)) if out is None else out
    kernel(output, sum_, as_rows(x), as_rows(residual), weight, eps, nth)
    return output, sum_


def _backward(
    lib: Any, grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, eps: float,
    residual: Tensor | None, needs: list[bool], out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kernel, nth = shared(lib.rms_norm_backward, x.numel())
    grad_x = torch.empty(x.shape, dtype=x.dtype) if out is None else out[0]
    partial = torch.zeros(nth, x.shape[-1], dtype=torch.float64)
    grad_weight = x.new_empty(0) if weight is None else torch.empty(weight.shape, dtype=x.dtype)
    kernel(
        grad_x, None if weight is None else grad_weight, partial, as_rows(grad),
        None if grad_sum is None or residual is None else as_rows(grad_sum), as_rows(x),
        None if residual is None else as_rows(residual), None if weight is None else weight.contiguous(), eps, nth,
    )  # fmt: skip
    return (
        grad_x,
        grad_weight if needs[1] else x.new_empty(0),
        grad_x.clone() if residual is not None and needs[2] else x.new_empty(0),
    )


def _composite(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None) -> Any:
    s = x if residual is None else x + residual
    output = F.rms_norm(s, (x.shape[-1],), weight, eps)
    return output if residual is None else (output, s)


def _aten(x: Any, weight: Any, eps: float, residual: Any) -> Any:
    s = x if residual is None else aten("add.Tensor", x, residual)
    output = aten("rms_norm", s, (x.shape[-1],), weight, eps)
    return output if residual is None else (output, s)


def _torch(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None, out: Any = None) -> Any:
    return into(_composite(x, weight, eps, residual), out)


def _torch_backward(
    grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None,
    needs: list[bool], out: Any = None, compute: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    s = x.to(compute) if residual is None else x.to(compute) + residual.to(compute)
    g = grad.to(compute)
    gw = g if weight is None else g * weight.to(compute)
    r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    grad_s = r * (gw - s * r.square() * (gw * s).mean(-1, keepdim=True))
    if residual is not None and grad_sum is not None:
        grad_s = grad_s + grad_sum.to(compute)
    grad_x = grad_s.to(x.dtype)
    grad_weight = (
        x.new_empty(0)
        if weight is None or not needs[1]
        else (g * s * r).reshape(math.prod(x.shape[:-1]), x.shape[-1]).sum(0).to(x.dtype)
    )
    return grad_x, grad_weight, grad_x.clone() if residual is not None and needs[2] else x.new_empty(0)


def _fake(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape if residual is not None else (0,))


def _fake_backward(
    grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    empty = x.new_empty(0)
    return (
        x.new_empty(x.shape),
        x.new_empty(weight.shape) if weight is not None and needs[1] else empty,
        x.new_empty(x.shape) if residual is not None and needs[2] else empty,
    )


def _fits_registers(request: Request) -> str | None:
    n = request.args["x"].shape[-1]
    return None if n <= LONGEST_GPU_ROW else f"takes rows of up to {LONGEST_GPU_ROW} elements, got {n}"


OP = Op(
    CONTRACT,
    [
        triton_row(Path(__file__).parent, guard=_fits_registers),
        *cpp_rows(Path(__file__).parent, forward=_forward, backward=_backward),
        python_row("torch", _torch, _torch_backward),
        python_row("reference", in_float64(reference), functools.partial(_torch_backward, compute=torch.float64)),
    ],
    room=__file__,
    forward=Pass(
        "rms_norm(Tensor x, Tensor? weight, float eps, Tensor? residual, str? row=None) -> (Tensor, Tensor)", _fake
    ),
    backward=Pass(
        "rms_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor x, Tensor? weight, float eps, "
        "Tensor? residual, bool[] needs, str? row=None) -> (Tensor, Tensor, Tensor)",
        _fake_backward,
        returns=("x", "weight", "residual"),
        reads={"weight": ("x", "residual")},
    ),
    composite=_composite,
    aten=_aten,
    mutants=MUTANTS,
    # torch wants a fixed number of outputs: without a residual the second one is empty.
    to_torch=lambda result, x, weight, eps, residual: result if residual is not None else (result, x.new_empty(0)),
    from_torch=lambda result, x, weight, eps, residual: result if residual is not None else result[0],
)


def _own(x: Tensor, weight: Tensor | None, *, eps: float, residual: Tensor | None = None) -> tuple[Any, ...]:
    return x, weight, eps, residual


def _ours(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Any, ...] | str:
    if not last_alone(normalized_shape, input):
        return "normalized_shape must be the last dimension alone"
    if eps is None:  # torch takes the input's own
        if input.dtype is not torch.float32:
            return "eps must be given, but for float32"
        eps = torch.finfo(torch.float32).eps
    return input, weight, eps, None


SPELLING = Spelling(OP, F.rms_norm, _ours, {"input": "x"}, own=_own)
