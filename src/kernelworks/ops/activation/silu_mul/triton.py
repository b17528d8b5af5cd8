"""silu_mul on the GPU: a program takes one run of elements, or a tile of rows where the tensors are strided."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.tile.exp2 import exp2_gradual
from kernelworks.tile.pointwise import Pointwise, inside, tile, whole
from kernelworks.tile.reciprocal import reciprocal

CONFIGS = configs(__file__)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul(output, gate, up, M, N, gate_stride, up_stride, mask, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(tile(gate, gate_stride, ROWS, COLUMNS), mask=mask).to(tl.float32)
    y = tl.load(tile(up, up_stride, ROWS, COLUMNS), mask=mask).to(tl.float32)
    # Where e^-gate overflows, the result is the 0 that float32 has for it.
    tl.store(tile(output, N, ROWS, COLUMNS), x / (1.0 + tl.exp2(x * -LOG2_E)) * y, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(output, gate, up, M, N, gate_stride, up_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    if whole(M, N, ROWS, COLUMNS):
        _silu_mul(output, gate, up, M, N, gate_stride, up_stride, None, ROWS, COLUMNS)
    else:
        mask = inside(M, N, ROWS, COLUMNS)
        _silu_mul(output, gate, up, M, N, gate_stride, up_stride, mask, ROWS, COLUMNS)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul_backward(  # type: ignore[no-untyped-def]
    grad_gate, grad_up, grad, gate, up, M, N, grad_stride, gate_stride, up_stride, mask, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    g = tl.load(tile(grad, grad_stride, ROWS, COLUMNS), mask=mask).to(tl.float32)
    x = tl.load(tile(gate, gate_stride, ROWS, COLUMNS), mask=mask).to(tl.float32)
    y = tl.load(tile(up, up_stride, ROWS, COLUMNS), mask=mask).to(tl.float32)
    # Both sigmoids from e^-|x|, which neither overflows nor cancels.
    e = exp2_gradual(tl.abs(x) * -LOG2_E)
    r = reciprocal(1.0 + e)
    s = e * r
    over, under = tl.where(x < 0.0, s, r), tl.where(x < 0.0, r, s)
    tl.store(tile(grad_gate, N, ROWS, COLUMNS), g * y * (over + over * under * x), mask=mask)
    tl.store(tile(grad_up, N, ROWS, COLUMNS), g * (x * over), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad_gate, grad_up, grad, gate, up, M, N, grad_stride, gate_stride, up_stride, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    if whole(M, N, ROWS, COLUMNS):
        _silu_mul_backward(
            grad_gate, grad_up, grad, gate, up, M, N, grad_stride, gate_stride, up_stride, None, ROWS, COLUMNS
        )
    else:
        mask = inside(M, N, ROWS, COLUMNS)
        _silu_mul_backward(
            grad_gate, grad_up, grad, gate, up, M, N, grad_stride, gate_stride, up_stride, mask, ROWS, COLUMNS
        )


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)
_empty_like = torch.empty_like


@functools.cache
def _flat(kernel: str, bits: int, dtype: torch.dtype) -> tuple[Launch, int]:
    """The launch for contiguous tensors of this many elements (its binary digits), and the elements of a program."""
    chosen = CONFIGS.pick(kernel, bits=bits, dtype=dtype)
    return (FORWARD if kernel == "forward" else BACKWARD).at(ROWS=0, **chosen), chosen["COLUMNS"]


@functools.cache
def _strided(kernel: str, rows: int, columns: int, dtype: torch.dtype) -> Launch:
    chosen = CONFIGS.pick("strided", dtype=dtype)
    return (FORWARD if kernel == "forward" else BACKWARD).at(ROWS=rows, COLUMNS=columns, **chosen)


_run, _run_back = (
    Pointwise(functools.partial(_flat, kernel), functools.partial(_strided, kernel))
    for kernel in ("forward", "backward")
)


def forward(gate: Tensor, up: Tensor, out: Any = None) -> Any:
    output = _empty_like(gate) if out is None else out
    _run((output,), (gate, up))
    return output


def backward(grad: Tensor, gate: Tensor, up: Tensor, needs: list[bool], out: Any = None) -> tuple[Tensor, Tensor]:
    both = (_empty_like(gate), _empty_like(up)) if out is None else out
    _run_back(both, (grad, gate, up))
    return both
