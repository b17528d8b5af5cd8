"""rms_norm on the GPU: one program a row, the row kept in registers, so that it is read once."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, multiprocessors
from kernelworks.ops.layout import as_rows

CONFIGS = configs(__file__)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(x, residual, weight, output, sum_, x_stride, residual_stride, N, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    s = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        s += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(sum_ + row * N + column, s, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(s * s) / N + eps)
    y = s * scale
    if weight is not None:
        y *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * N + column, y, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, grad_sum, x, residual, weight, grad_x, partial,
    grad_stride, grad_sum_stride, x_stride, residual_stride, M, N, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    if weight is not None:
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
    for index in range(program, M, programs):
        row = tl.cast(index, tl.int64)
        s = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if residual is not None:
            s += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + row * grad_stride + column, mask=inside, other=0.0).to(tl.float32)
        r = 1.0 / tl.sqrt(tl.sum(s * s) / N + eps)
        gw = g
        if weight is not None:
            total += g * s * r
            gw = g * w
        d = r * (gw - s * (r * r * tl.sum(gw * s) / N))
        if grad_sum is not None:
            d += tl.load(grad_sum + row * grad_sum_stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + row * N + column, d, mask=inside)
    if weight is not None:
        tl.store(partial + program.to(tl.int64) * N + column, total, mask=inside)


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)


@functools.cache
def _forward_at(n: int, dtype: torch.dtype) -> Launch:
    return FORWARD.at(BLOCK=triton.next_power_of_2(n), **CONFIGS.pick("forward", N=n, dtype=dtype))


@functools.cache
def _backward_at(n: int, dtype: torch.dtype) -> Launch:
    return BACKWARD.at(BLOCK=triton.next_power_of_2(n), **CONFIGS.pick("backward", N=n, dtype=dtype))


def forward(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None, out: Any = None) -> Any:
    n = x.shape[-1]
    rows = as_rows(x)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if residual is None:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
        if n:
            grid = (rows.numel() // n, 1, 1)
            _forward_at(n, x.dtype)(grid, rows, None, weight, output, None, _stride(rows), 0, n, float(eps))
        return output
    output, sum_ = (x.new_empty(x.shape), x.new_empty(x.shape)) if out is None else out
    if n:
        added = as_rows(residual)
        grid = (rows.numel() // n, 1, 1)
        _forward_at(n, x.dtype)(
            grid, rows, added, weight, output, sum_, _stride(rows), _stride(added), n, float(eps)
        )  # fmt: skip
    return output, sum_


def backward(
    grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    n = x.shape[-1]
    m = x.numel() // max(n, 1)
    grad_x = x.new_empty(x.shape) if out is None else out[0]
    grad_weight = x.new_empty(0)
    programs = min(m, 4 * multiprocessors(x.device))
    partial = x.new_empty((programs, n), dtype=torch.float32) if weight is not None else None
    if x.numel():
        rows, grads = as_rows(x), as_rows(grad)
        added = None if residual is None else as_rows(residual)
        later = None if grad_sum is None or residual is None else as_rows(grad_sum)
        _backward_at(n, x.dtype)(
            (programs, 1, 1), grads, later, rows, added, None if weight is None else weight.contiguous(), grad_x,
            partial, _stride(grads), _stride(later), _stride(rows), _stride(added), m, n, float(eps),
        )  # fmt: skip
    if partial is not None:
        grad_weight = partial.sum(0).to(x.dtype)
    return grad_x, grad_weight, grad_x.clone() if residual is not None and needs[2] else x.new_empty(0)


def _stride(rows: Tensor | None) -> int:
    """Between rows, of what ``as_rows`` gave."""
    if rows is None:
        return 0
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]
