"""The gate of a gated MLP: silu of one tensor times another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.aten import aten
from kernelworks.build.rows import cpp_rows, in_float64, into, python_row, triton_row
from kernelworks.build.sharing import shared
from kernelworks.op import Op, Pass
from kernelworks.ops.activation.silu_mul.contract import CONTRACT, reference
from kernelworks.ops.activation.silu_mul.mutants import MUTANTS
from kernelworks.spelling import Array

__all__ = ["OP", "silu_mul"]


def silu_mul(gate: Array, up: Array, *, out: Array | None = None, row: str | None = None) -> Array:
    """Silu of the gate times up, in one pass: ``output = gate sigmoid(gate) up``.

    Args:
        gate: any shape and strides, float32, bfloat16 or float16.
        up: gate's shape and dtype, any strides.
        out: where to write: a contiguous tensor of gate's shape and dtype.
        row: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like gate, rounded once (torch rounds silu to the dtype before it multiplies).

    Error bound: ``u |output| + 2^-24 (8 + 2 |gate| sigmoid(-gate)) |output|``, u the unit roundoff of the dtype
    (and ``2^-128 |gate up|`` where ``e^-gate`` leaves float32).
    Cost: one exponential, about 20 flop an element; reads gate and up once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``row`` cannot run.
    Source: Shazeer 2020, arXiv:2002.05202.
    """
    return OP.call(gate, up, out, row)  # type: ignore[no-any-return]


_empty_like = torch.empty_like  # found in one step: small calls are made by the thousand


def _forward(lib: Any, gate: Tensor, up: Tensor, out: Any = None) -> Any:
    output = _empty_like(gate) if out is None else out
    kernel, nth = shared(lib.silu_mul, gate.numel())
    kernel(output, gate, up, nth)
    return output


def _backward(
    lib: Any, grad: Tensor, gate: Tensor, up: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    grad_gate, grad_up = (torch.empty_like(gate), torch.empty_like(up)) if out is None else out
    kernel, nth = shared(lib.silu_mul_backward, grad.numel())
    kernel(grad_gate, grad_up, grad, gate, up, nth)
    return grad_gate, grad_up


def _composite(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _aten(gate: Any, up: Any) -> Any:
    return aten("mul.Tensor", aten("silu", gate), up)


def _torch(gate: Tensor, up: Tensor, out: Any = None) -> Any:
    output = torch.empty_like(gate) if out is None else out
    return into(_composite(gate, up), output)


def _torch_backward(
    grad: Tensor, gate: Tensor, up: Tensor, needs: list[bool], out: Any = None, compute: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    g, a, b = grad.to(compute), gate.to(compute), up.to(compute)
    s = torch.sigmoid(a)
    grad_gate = g * b * (s + a * s * torch.sigmoid(-a))
    return torch.empty_like(gate).copy_(grad_gate), torch.empty_like(up).copy_(g * a * s)


def _reference_backward(
    grad: Tensor, gate: Tensor, up: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    return _torch_backward(grad, gate, up, needs, out, torch.float64)


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
    forward=Pass("silu_mul(Tensor gate, Tensor up, str? row=None) -> Tensor", lambda gate, up: torch.empty_like(gate)),
    backward=Pass(
        "silu_mul_backward(Tensor grad_output, Tensor gate, Tensor up, bool[] needs, str? row=None) "
        "-> (Tensor, Tensor)",
        lambda grad, gate, up, needs: (torch.empty_like(gate), torch.empty_like(up)),
        returns=("gate", "up"),
        reads={"up": ("gate",)},
    ),
    composite=_composite,
    aten=_aten,
    pointwise=True,
    mutants=MUTANTS,
)
