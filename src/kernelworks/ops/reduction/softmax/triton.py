"""softmax on the GPU: a row stays in registers, so that it is read once; longer ones are read a second time from L2.

Along a dimension that is not the last, a program takes neighbouring columns of [outer, N, inner].
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.layout import as_rows
from kernelworks.tile.exp import LN2, LOG2E, LOWEST, exp, exp_to_add

CONFIGS = configs(__file__)
LONGEST = 32768  # elements that a program keeps in registers
PIECE = 8192  # of a row that is longer


@triton.jit  # type: ignore[untyped-decorator]
def _forward_packed(x, output, stride, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One long row of 16-bit elements, which stay as they came: half the registers, twice the rows under way."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + column, mask=column < N, other=float("-inf"))
    top = tl.max(v, 0).to(tl.float32)
    scale = 1.0 / tl.sum(exp_to_add(v.to(tl.float32) - top), 0)
    d = tl.maximum(v.to(tl.float32) - top, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    t = d * LOG2E
    half = tl.exp2(0.5 * t)  # its square is subnormal where e^d is
    y = half * scale * half
    tl.store(
        output + row * N + column, tl.fma(y, tl.fma(t, -LN2, d), y), mask=column < N
    )  # corrected as in tile/exp.py


@triton.jit  # type: ignore[untyped-decorator]
def _forward(x, output, stride, M, N, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (column < N)
    v = tl.load(x + row * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    e = exp(v - tl.max(v, 1)[:, None])
    y = e * (1.0 / tl.sum(e, 1))[:, None]
    tl.store(output + row * N + column, y, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, output, grad_x, grad_stride, stride, M, N, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (column < N)
    y = tl.load(output + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + row * grad_stride + column, mask=inside, other=0.0).to(tl.float32)
    d = y * (g - tl.sum(y * g, 1)[:, None])
    tl.store(grad_x + row * N + column, d, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _long_forward(x, output, stride, N, BLOCK: tl.constexpr, PIECES: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    tops = tl.full([PIECES], float("-inf"), tl.float32)
    sums = tl.zeros([PIECES], tl.float32)
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + column, mask=column < N, other=float("-inf"), eviction_policy="evict_last")
        v = v.to(tl.float32)
        top = tl.max(v, 0)
        total = tl.sum(exp(v - tl.where(top == float("-inf"), 0.0, top)), 0)  # a piece of -inf adds nothing
        tops = tl.where(piece == begin // BLOCK, top, tops)
        sums = tl.where(piece == begin // BLOCK, total, sums)
    top = tl.max(tops, 0)
    scale = 1.0 / tl.sum(sums * exp(tops - top), 0)  # each piece is rescaled once, however often the maximum rose
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + column, mask=column < N, other=0.0, eviction_policy="evict_first")
        tl.store(output + row * N + column, exp(v.to(tl.float32) - top) * scale, mask=column < N)


@triton.jit  # type: ignore[untyped-decorator]
def _long_backward(grad, output, grad_x, grad_stride, stride, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([], tl.float64)  # of pieces, each summed in float32
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        y = tl.load(output + row * stride + column, mask=column < N, other=0.0, eviction_policy="evict_last")
        g = tl.load(grad + row * grad_stride + column, mask=column < N, other=0.0, eviction_policy="evict_last")
        total += tl.sum(y.to(tl.float32) * g.to(tl.float32), 0)
    dot = total.to(tl.float32)
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        y = tl.load(output + row * stride + column, mask=column < N, other=0.0, eviction_policy="evict_first")
        g = tl.load(grad + row * grad_stride + column, mask=column < N, other=0.0, eviction_policy="evict_first")
        d = y.to(tl.float32) * (g.to(tl.float32) - dot)
        tl.store(grad_x + row * N + column, d, mask=column < N)


@triton.jit  # type: ignore[untyped-decorator]
def _down_forward(x, output, N, inner, blocks, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    start = (program // blocks) * N * inner
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    top = tl.full([COLUMNS], float("-inf"), tl.float32)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        v = tl.load(x + start + line * inner + column, mask=inside, other=float("-inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(v, 0))
    total = tl.zeros([COLUMNS], tl.float64)  # of pieces, each summed in float32
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        v = tl.load(x + start + line * inner + column, mask=inside, other=float("-inf")).to(tl.float32)
        total += tl.sum(exp(v - top[None, :]), 0)
    scale = (1.0 / total).to(tl.float32)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        v = tl.load(x + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(output + start + line * inner + column, exp(v - top[None, :]) * scale[None, :], mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _down_backward(  # type: ignore[no-untyped-def]
    grad, output, grad_x, N, inner, blocks, BLOCK: tl.constexpr, COLUMNS: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    start = (program // blocks) * N * inner
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([COLUMNS], tl.float64)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        y = tl.load(output + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(y * g, 0)
    dot = total.to(tl.float32)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        y = tl.load(output + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + start + line * inner + column, y * (g - dot[None, :]), mask=inside)


FORWARD, BACKWARD, PACKED = Kernel(_forward), Kernel(_backward), Kernel(_forward_packed)
LONG_FORWARD, LONG_BACKWARD = Kernel(_long_forward), Kernel(_long_backward)
DOWN_FORWARD, DOWN_BACKWARD = Kernel(_down_forward), Kernel(_down_backward)


@functools.cache
def _along(kernel: Kernel, name: str, n: int, dtype: torch.dtype) -> tuple[Launch, int]:
    """The launch for rows of n elements, and how many of them a program takes."""
    settings = CONFIGS.pick(name, N=n, dtype=dtype)
    return kernel.at(BLOCK=triton.next_power_of_2(n), **settings), settings["ROWS"]


@functools.cache
def _packed(n: int, dtype: torch.dtype) -> Launch | None:
    """The launch for one row of n elements that stay in 16 bits, where that is the quicker one."""
    if dtype == torch.float32 or not 4096 < n <= 16384:
        return None
    return PACKED.at(BLOCK=triton.next_power_of_2(n), **CONFIGS.pick("forward_packed", N=n, dtype=dtype))


@functools.cache
def _down(kernel: Kernel, name: str, n: int, inner: int, dtype: torch.dtype) -> tuple[Launch, int]:
    """The launch for columns of n elements, and how many of them a program takes."""
    settings = CONFIGS.pick(name, N=n, inner=inner, dtype=dtype)
    lines, columns = triton.next_power_of_2(n), triton.next_power_of_2(inner)
    columns = min(columns, max(settings["COLUMNS"], settings["TILE"] // lines))
    lines = min(lines, max(settings["TILE"] // columns, 1))
    return kernel.at(BLOCK=lines, COLUMNS=columns, num_warps=settings["num_warps"]), columns


def _stride(rows: Tensor) -> int:
    """Between rows, of what ``as_rows`` gave."""
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


def prepare_forward(x: Tensor, dim: int) -> Callable[..., Tensor] | None:
    """The forward of contiguous rows that stay in registers, with all but its tensors settled."""
    n = x.shape[dim]
    if not x.numel() or not x.is_contiguous() or dim not in (-1, x.dim() - 1) or n > LONGEST:
        return None
    m, packed, output = x.numel() // n, _packed(n, x.dtype), torch.empty_like(x)
    if packed is not None:
        ready = packed.prepared((m, 1, 1), x, output, n, n)
    else:
        launch, taken = _along(FORWARD, "forward", n, x.dtype)
        ready = launch.prepared((-(-m // taken), 1, 1), x, output, n, m, n)

    def run(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        output = torch.empty_like(x) if out is None else out
        ready(x, output)
        return output

    return run


def forward(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    size = x.numel()
    if not size:
        return output
    if dim == -1 or dim == x.dim() - 1:
        rows = as_rows(x)
        n = x.shape[-1]
        m = size // n
        packed = _packed(n, x.dtype)
        if packed is not None:
            packed((m, 1, 1), rows, output, _stride(rows), n)
        elif n <= LONGEST:
            launch, taken = _along(FORWARD, "forward", n, x.dtype)
            launch(((m + taken - 1) // taken, 1, 1), rows, output, _stride(rows), m, n)
        else:
            launch = LONG_FORWARD.at(
                BLOCK=PIECE, PIECES=triton.next_power_of_2(triton.cdiv(n, PIECE)), **CONFIGS.pick("long_forward")
            )
            launch((m, 1, 1), rows, output, _stride(rows), n)
        return output
    n, inner = x.shape[dim], math.prod(x.shape[dim % x.dim() + 1 :])
    launch, taken = _down(DOWN_FORWARD, "down_forward", n, inner, x.dtype)
    blocks = triton.cdiv(inner, taken)
    launch((size // (n * inner) * blocks, 1, 1), x.contiguous(), output, n, inner, blocks)
    return output


def backward(grad: Tensor, output: Tensor, dim: int, out: Any = None) -> Tensor:
    grad_x = torch.empty(output.shape, dtype=output.dtype, device=output.device) if out is None else out
    size = output.numel()
    if not size:
        return grad_x
    if dim == -1 or dim == output.dim() - 1:
        rows, grads = as_rows(output), as_rows(grad)
        n = output.shape[-1]
        if n <= LONGEST:
            launch, taken = _along(BACKWARD, "backward", n, output.dtype)
            m = size // n
            grid = ((m + taken - 1) // taken, 1, 1)
            launch(grid, grads, rows, grad_x, _stride(grads), _stride(rows), m, n)
        else:
            launch = LONG_BACKWARD.at(BLOCK=PIECE, **CONFIGS.pick("long_backward"))
            launch((size // n, 1, 1), grads, rows, grad_x, _stride(grads), _stride(rows), n)
        return grad_x
    n, inner = output.shape[dim], math.prod(output.shape[dim % output.dim() + 1 :])
    launch, taken = _down(DOWN_BACKWARD, "down_backward", n, inner, output.dtype)
    blocks = triton.cdiv(inner, taken)
    launch((size // (n * inner) * blocks, 1, 1), grad.contiguous(), output.contiguous(), grad_x, n, inner, blocks)
    return grad_x
