"""cholesky_solve on the GPU: a program keeps the right-hand sides of some systems in registers."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs

CONFIGS = configs(__file__)
WIDEST = 16  # right-hand sides that a program takes of a system


@triton.jit
def _solve(
    out, sides, factor, batch, N, K, row, column,
    SYSTEMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``row`` and ``column`` are how far the factor's rows and columns lie apart: in an upper one the other way."""
    system = (tl.program_id(0).to(tl.int64) * SYSTEMS + tl.arange(0, SYSTEMS))[:, None, None]
    i = tl.arange(0, ROWS)[None, :, None]
    k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    here = system < batch
    there = here & (i < N) & (k < K)
    x = tl.load(sides + system * N * K + i * K + k, mask=there, other=0.0)
    m = factor + system * N * N
    for j in range(N):
        y = tl.sum(tl.where(i == j, x, 0.0), 1, keep_dims=True)
        y = y / tl.load(m + j * (row + column), mask=here, other=1.0)
        below = tl.load(m + i * row + j * column, mask=here & (i < N) & (i > j), other=0.0)
        x = tl.where(i == j, y, x - below * y)
    for back in range(N):
        j = N - 1 - back
        y = tl.sum(tl.where(i == j, x, 0.0), 1, keep_dims=True)
        y = y / tl.load(m + j * (row + column), mask=here, other=1.0)
        before = tl.load(m + j * row + i * column, mask=here & (i < j), other=0.0)
        x = tl.where(i == j, y, x - before * y)
    tl.store(out + system * N * K + i * K + k, x, mask=there)


@triton.jit
def _factor_gradient(out, g, x, factor, N, K, row, column, ROWS: tl.constexpr):
    """-(G X^T + X G^T) M of one system: column by column of G and X."""
    system = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    inside = (i < N) & (j < N)
    at = i * row + j * column
    m = tl.load(factor + system * N * N + at, mask=inside, other=0.0)
    total = tl.zeros_like(m)
    for k in range(K):
        place = system * N * K + i * K + k
        g_k, x_k = tl.load(g + place, mask=i < N, other=0.0), tl.load(x + place, mask=i < N, other=0.0)
        total -= g_k * tl.sum(x_k * m, 0, keep_dims=True) + x_k * tl.sum(g_k * m, 0, keep_dims=True)
    tl.store(out + system * N * N + at, total, mask=inside)


SOLVE, FACTOR = Kernel(_solve), Kernel(_factor_gradient)


@functools.cache
def _at(N: int, K: int) -> tuple[Launch, int, int]:
    chosen = CONFIGS.pick("solve", dtype=torch.float32, N=N)
    rows, columns = triton.next_power_of_2(N), min(triton.next_power_of_2(K), WIDEST)
    systems = max(1, chosen.pop("NUMBERS") // (rows * columns))
    return SOLVE.at(SYSTEMS=systems, ROWS=rows, COLUMNS=columns, **chosen), systems, columns


@functools.cache
def _factor_at(N: int) -> Launch:
    return FACTOR.at(ROWS=triton.next_power_of_2(N), **CONFIGS.pick("factor", dtype=torch.float32, N=N))


def _strides(N: int, upper: bool) -> tuple[int, int]:
    return (1, N) if upper else (N, 1)


def _run(out: Tensor, sides: Tensor, factor: Tensor, upper: bool) -> None:
    N, K = sides.shape[-2:]
    batch = sides.numel() // (N * K)
    launch, systems, columns = _at(N, K)
    grid = (triton.cdiv(batch, systems), triton.cdiv(K, columns), 1)
    launch(grid, out, sides, factor, batch, N, K, *_strides(N, upper))


def forward(B: Tensor, L: Tensor, upper: bool, out: Any = None) -> Tensor:
    made = B.new_empty(B.shape) if out is None else out
    if made.numel():
        _run(made, B.contiguous(), L.contiguous(), upper)
    return made


def backward(
    grad: Tensor, B: Tensor, L: Tensor, output: Tensor, upper: bool, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    to_B, to_L = (B.new_empty(B.shape), L.new_empty(L.shape if needs[1] else 0)) if out is None else out
    if not B.numel():
        return to_B, to_L.zero_()
    factor = L.contiguous()
    _run(to_B, grad.contiguous(), factor, upper)
    if needs[1]:
        N, K = B.shape[-2:]
        batch = B.numel() // (N * K)
        _factor_at(N)((batch, 1, 1), to_L, to_B, output.contiguous(), factor, N, K, *_strides(N, upper))
    return to_B, to_L
