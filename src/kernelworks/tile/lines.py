"""Ops along a dimension, whose functions an op package gives: what is made of a line's sum, and what is written.

A forward starts from d = x - max of its line and s = the sum of e^d: ``OF(s)`` once a line, then ``VALUE(d, of)``, or
``VALUE(e^d, of)`` where it is ``OF_EXP``. A backward reads g and the output y, adds ``TERM(g, y)``, and writes
``GRADIENT(g, y, total)``. A row stays in registers, so that it is read once; longer ones are read a second time from
L2. Along a dimension that is not the last, a program takes neighbouring columns of [outer, N, inner].
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.contract.memory_layout import as_rows
from kernelworks.tile.exp import exp

LONGEST = 32768  # elements that a program keeps in registers
PIECE = 8192  # of a row that is longer


@triton.jit
def _forward(
    x, output, stride, M, N,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, OF_EXP: tl.constexpr, OF: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (column < N)
    v = tl.load(x + row * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    d = v - tl.max(v, 1)[:, None]
    e = exp(d)
    y = VALUE(e if OF_EXP else d, OF(tl.sum(e, 1))[:, None])
    tl.store(output + row * N + column, y, mask=inside)


@triton.jit
def _long_forward(
    x, output, stride, N,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, OF_EXP: tl.constexpr, OF: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
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
    of = OF(tl.sum(sums * exp(tops - top), 0))  # each piece is rescaled once, however often the maximum rose
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + column, mask=column < N, other=0.0, eviction_policy="evict_first")
        d = v.to(tl.float32) - top
        tl.store(output + row * N + column, VALUE(exp(d) if OF_EXP else d, of), mask=column < N)


@triton.jit
def _down_forward(
    x, output, N, inner, blocks,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, OF_EXP: tl.constexpr, OF: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
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
    of = OF(total).to(tl.float32)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        v = tl.load(x + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        d = v - top[None, :]
        tl.store(output + start + line * inner + column, VALUE(exp(d) if OF_EXP else d, of[None, :]), mask=inside)


@triton.jit
def _backward(
    grad, output, grad_x, grad_stride, stride, M, N,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, TERM: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (column < N)
    y = tl.load(output + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + row * grad_stride + column, mask=inside, other=0.0).to(tl.float32)
    d = GRADIENT(g, y, tl.sum(TERM(g, y), 1)[:, None])
    tl.store(grad_x + row * N + column, d, mask=inside)


@triton.jit
def _long_backward(
    grad, output, grad_x, grad_stride, stride, N, BLOCK: tl.constexpr, TERM: tl.constexpr, GRADIENT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([], tl.float64)  # of pieces, each summed in float32
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        y = tl.load(output + row * stride + column, mask=column < N, other=0.0, eviction_policy="evict_last")
        g = tl.load(grad + row * grad_stride + column, mask=column < N, other=0.0, eviction_policy="evict_last")
        total += tl.sum(TERM(g.to(tl.float32), y.to(tl.float32)), 0)
    whole = total.to(tl.float32)
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        y = tl.load(output + row * stride + column, mask=column < N, other=0.0, eviction_policy="evict_first")
        g = tl.load(grad + row * grad_stride + column, mask=column < N, other=0.0, eviction_policy="evict_first")
        d = GRADIENT(g.to(tl.float32), y.to(tl.float32), whole)
        tl.store(grad_x + row * N + column, d, mask=column < N)


@triton.jit
def _down_backward(
    grad, output, grad_x, N, inner, blocks,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, TERM: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    start = (program // blocks) * N * inner
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([COLUMNS], tl.float64)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        y = tl.load(output + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(TERM(g, y), 0)
    whole = total.to(tl.float32)
    for begin in range(0, N, BLOCK):
        line = begin + tl.arange(0, BLOCK)[:, None].to(tl.int64)
        inside = (line < N) & (column < inner)
        y = tl.load(output + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + start + line * inner + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + start + line * inner + column, GRADIENT(g, y, whole[None, :]), mask=inside)


FORWARD, LONG_FORWARD, DOWN_FORWARD = Kernel(_forward), Kernel(_long_forward), Kernel(_down_forward)
BACKWARD, LONG_BACKWARD, DOWN_BACKWARD = Kernel(_backward), Kernel(_long_backward), Kernel(_down_backward)


def row_stride(rows: Tensor) -> int:
    """Between rows, of what ``as_rows`` gave."""
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


class Lines:
    """The passes of one op: the kernels with an op package's functions in them, in its configurations.

    ``packed(n, dtype)`` may give the launch of a kernel of the op package's own for one row of n elements (arguments x,
    output, row stride, n), where that is the quicker one.
    """

    def __init__(
        self, op_package: str | Path, forward: dict[str, Any], backward: dict[str, Any],
        packed: Callable[[int, torch.dtype], Launch | None] = lambda n, dtype: None,
    ) -> None:  # fmt: skip
        self.configs, self.packed = configs(op_package), packed
        self.functions = {"forward": forward, "backward": backward}
        self.along, self.down = functools.cache(self._along), functools.cache(self._down)

    def _along(self, pass_: str, n: int, dtype: torch.dtype) -> tuple[Launch, int]:
        """The launch for rows of n elements, and how many of them a program takes."""
        settings = self.configs.pick(pass_, N=n, dtype=dtype)
        kernel = FORWARD if pass_ == "forward" else BACKWARD
        constants = {"BLOCK": triton.next_power_of_2(n), **settings, **self.functions[pass_]}
        return kernel.at(**constants), settings["ROWS"]

    def _long(self, pass_: str, n: int) -> Launch:
        """The launch for rows that registers do not hold."""
        settings = {"BLOCK": PIECE, **self.configs.pick(f"long_{pass_}"), **self.functions[pass_]}
        if pass_ == "backward":
            return LONG_BACKWARD.at(**settings)
        return LONG_FORWARD.at(PIECES=triton.next_power_of_2(triton.cdiv(n, PIECE)), **settings)

    def _down(self, pass_: str, n: int, inner: int, dtype: torch.dtype) -> tuple[Launch, int]:
        """The launch for columns of n elements, and how many of them a program takes."""
        settings = self.configs.pick(f"down_{pass_}", N=n, inner=inner, dtype=dtype)
        lines, columns = triton.next_power_of_2(n), triton.next_power_of_2(inner)
        columns = min(columns, max(settings["COLUMNS"], settings["TILE"] // lines))
        lines = min(lines, max(settings["TILE"] // columns, 1))
        kernel, warps = DOWN_FORWARD if pass_ == "forward" else DOWN_BACKWARD, settings["num_warps"]
        return kernel.at(BLOCK=lines, COLUMNS=columns, num_warps=warps, **self.functions[pass_]), columns

    def prepare_forward(self, x: Tensor, dim: int) -> Callable[..., Tensor] | None:
        """The forward of contiguous rows that stay in registers, with all but its tensors fixed."""
        n = x.shape[dim]
        if not x.numel() or not x.is_contiguous() or dim not in (-1, x.dim() - 1) or n > LONGEST:
            return None
        m, packed, output = x.numel() // n, self.packed(n, x.dtype), torch.empty_like(x)
        if packed is not None:
            ready = packed.prepare_launch((m, 1, 1), x, output, n, n)
        else:
            launch, taken = self.along("forward", n, x.dtype)
            ready = launch.prepare_launch((-(-m // taken), 1, 1), x, output, n, m, n)

        def run(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
            output = torch.empty_like(x) if out is None else out
            ready(x, output)
            return output

        return run

    def forward(self, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
        if not x.numel():
            return output
        if dim != -1 and dim != x.dim() - 1:
            self._columns("forward", dim, x.contiguous(), output)
            return output
        rows, n = as_rows(x), x.shape[-1]
        m, packed = x.numel() // n, self.packed(n, x.dtype)
        if packed is not None:
            packed((m, 1, 1), rows, output, row_stride(rows), n)
        elif n <= LONGEST:
            launch, taken = self.along("forward", n, x.dtype)
            launch(((m + taken - 1) // taken, 1, 1), rows, output, row_stride(rows), m, n)
        else:
            self._long("forward", n)((m, 1, 1), rows, output, row_stride(rows), n)
        return output

    def backward(self, grad: Tensor, output: Tensor, dim: int, out: Any = None) -> Tensor:
        grad_x = torch.empty(output.shape, dtype=output.dtype, device=output.device) if out is None else out
        if not output.numel():
            return grad_x
        if dim != -1 and dim != output.dim() - 1:
            self._columns("backward", dim, grad.contiguous(), output.contiguous(), grad_x)
            return grad_x
        rows, grads, n = as_rows(output), as_rows(grad), output.shape[-1]
        m, strides = output.numel() // n, (row_stride(grads), row_stride(rows))
        if n <= LONGEST:
            launch, taken = self.along("backward", n, output.dtype)
            launch(((m + taken - 1) // taken, 1, 1), grads, rows, grad_x, *strides, m, n)
        else:
            self._long("backward", n)((m, 1, 1), grads, rows, grad_x, *strides, n)
        return grad_x

    def _columns(self, pass_: str, dim: int, *tensors: Tensor) -> None:
        shape = tensors[0].shape
        n, inner = shape[dim], math.prod(shape[dim % len(shape) + 1 :])
        launch, taken = self.down(pass_, n, inner, tensors[0].dtype)
        blocks = triton.cdiv(inner, taken)
        launch((tensors[0].numel() // (n * inner) * blocks, 1, 1), *tensors, n, inner, blocks)
