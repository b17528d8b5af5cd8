"""Layer normalisation."""

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
from kernelworks.build.rows import cpp_rows, cuda_row, in_float64, into, python_row, triton_row, with_forward_of
from kernelworks.build.sharing import shared
from kernelworks.contract import Request
from kernelworks.op import Op, Pass
from kernelworks.ops.layout import as_rows
from kernelworks.ops.norm.layer_norm import sm90_backward
from kernelworks.ops.norm.layer_norm.contract import CONTRACT, reference
from kernelworks.ops.norm.layer_norm.mutants import MUTANTS
from kernelworks.spelling import ABSENT, Array, Spelling, last_alone

__all__ = ["OP", "layer_norm"]


LONGEST_GPU_ROW = 65536  # elements; what a program keeps of longer rows mostly goes to memory


@overload
def layer_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    out: Array | None = None,
    row: str | None = None,
) -> Array: ...
@overload
def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    row: str | None = None,
) -> Array: ...
def layer_norm(
    x: Any = ABSENT,
    weight: Any = ABSENT,
    bias: Any = ABSENT,
    /,
    *rest: Any,
    eps: Any = ABSENT,
    out: Any = None,
    row: str | None = None,
    **named: Any,
) -> Any:
    """Layer normalisation of the last dimension.

    ``output = z * weight + bias`` with ``z = (x - mean(x, -1)) / sqrt(mean((x - mean)^2, -1) + eps)``.

    Args:
        x: [..., N], float32, bfloat16 or float16, any strides.
        weight: [N] of x's dtype, or None for ones.
        bias: [N] of x's dtype, or None for zeros.
        eps: added to the variance (the biased one, divided by N). No default: frameworks disagree.
        out: where to write: a contiguous tensor like x.
        row: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N].

    Error bound: |output - exact| <= u |output| + 2^-24 (|output| + (min(N, 4096)/32 + 12) (|z| + 1) |weight|), u the
    unit roundoff of the dtype; a large mean does not enter it.
    Cost: 8 N flop a row; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``row`` cannot run.
    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    if named or rest:
        if eps is not ABSENT:
            named["eps"] = eps
        return SPELLING.either((x, weight, bias, *rest), named, out, row)
    return OP.call(x, weight, bias, eps, out, row)


def _plain(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.is_contiguous() else parameter.contiguous()


def _forward(
    lib: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    output = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    kernel, nth = shared(lib.layer_norm, x.numel())
    kernel(output, as_rows(x), _plain(weight), _plain(bias), eps, nth)
    return output


def _backward(
    lib: Any, grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad_x = torch.empty(x.shape, dtype=x.dtype) if out is None else out[0]
    grad_weight = torch.empty(x.shape[-1:] if weight is not None and needs[1] else (0,), dtype=x.dtype)
    grad_bias = torch.empty(x.shape[-1:] if bias is not None and needs[2] else (0,), dtype=x.dtype)
    stats = torch.empty(math.prod(x.shape[:-1]), 3, dtype=torch.float64)
    kernel, nth = shared(lib.layer_norm_backward, x.numel())
    kernel(
        grad_x, grad_weight if grad_weight.numel() else None, grad_bias if grad_bias.numel() else None, stats,
        as_rows(grad), as_rows(x), _plain(weight), eps, nth,
    )  # fmt: skip
    return grad_x, grad_weight, grad_bias


def _composite(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _aten(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return aten("layer_norm", x, (x.shape[-1],), weight, bias, eps, torch.backends.cudnn.enabled)


def _torch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor | None = None) -> Any:
    return into(_composite(x, weight, bias, eps), out)


def _torch_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool],
    out: Any = None, compute: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    g, wide = grad.to(compute), x.to(compute)
    gw = g if weight is None else g * weight.to(compute)
    deviations = wide - wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviations.square().mean(-1, keepdim=True) + eps)
    z = deviations * rstd
    grad_x = rstd * (gw - gw.mean(-1, keepdim=True) - z * (gw * z).mean(-1, keepdim=True))
    rows, empty = (math.prod(x.shape[:-1]), x.shape[-1]), x.new_empty(0)
    return (
        grad_x.to(x.dtype),
        (g * z).reshape(rows).sum(0).to(x.dtype) if weight is not None and needs[1] else empty,
        g.reshape(rows).sum(0).to(x.dtype) if bias is not None and needs[2] else empty,
    )


def _fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        x.new_empty(x.shape[-1:] if weight is not None and needs[1] else (0,)),
        x.new_empty(x.shape[-1:] if bias is not None and needs[2] else (0,)),
    )


def _fits_registers(request: Request) -> str | None:
    n = request.args["x"].shape[-1]
    return None if n <= LONGEST_GPU_ROW else f"takes rows of up to {LONGEST_GPU_ROW} elements, got {n}"


ROOM = Path(__file__).parent
TRITON = triton_row(ROOM, guard=_fits_registers)
HOPPER = cuda_row(
    ROOM, source="sm90_backward.cu", name="sm90_backward", guard=sm90_backward.guard, passes=("backward",)
)

OP = Op(
    CONTRACT,
    [
        with_forward_of(TRITON, HOPPER),
        TRITON,
        *cpp_rows(ROOM, forward=_forward, backward=_backward),
        python_row("torch", _torch, _torch_backward),
        python_row("reference", in_float64(reference), functools.partial(_torch_backward, compute=torch.float64)),
    ],
    room=__file__,
    forward=Pass("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, str? row=None) -> Tensor", _fake),
    backward=Pass(
        "layer_norm_backward(Tensor grad_output, Tensor x, Tensor? weight, Tensor? bias, float eps, bool[] needs, "
        "str? row=None) -> (Tensor, Tensor, Tensor)",
        _fake_backward,
        returns=("x", "weight", "bias"),
    ),
    composite=_composite,
    aten=_aten,
    mutants=MUTANTS,
)


def _own(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> tuple[Any, ...]:
    return x, weight, bias, eps


def _ours(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Any, ...] | str:  # fmt: skip
    if not last_alone(normalized_shape, input):
        return "normalized_shape must be the last dimension alone"
    return input, weight, bias, eps


SPELLING = Spelling(OP, F.layer_norm, _ours, {"input": "x"}, own=_own)
