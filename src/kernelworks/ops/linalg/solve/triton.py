"""solve on the GPU: a program keeps the matrices of some systems, and some of their right-hand sides, in registers."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.linalg.solve import as_batch, raise_if_singular
from kernelworks.ops.linalg.solve.contract import as_columns

CONFIGS = configs(__file__)
WIDEST = 16  # right-hand sides that a program takes of a system


@triton.jit
def _solve(
    out, singular, sides, matrix, batch, N, K, row, column,
    SYSTEMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``row`` and ``column`` are how far the matrix's rows and columns lie apart: of a transposed one the other way."""
    system = (tl.program_id(0).to(tl.int64) * SYSTEMS + tl.arange(0, SYSTEMS))[:, None, None]
    i, j = tl.arange(0, ROWS)[None, :, None], tl.arange(0, ROWS)[None, None, :]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    here = system < batch
    there = here & (i < N) & (j < N)
    a = tl.load(matrix + system * N * N + i * row + j * column, mask=there, other=0.0)
    a = tl.where(there, a, tl.where(i == j, 1.0, 0.0))
    inside = here & (i < N) & (c < K)
    x = tl.load(sides + system * N * K + i * K + c, mask=inside, other=0.0)
    wrong = tl.zeros([SYSTEMS, 1, 1], tl.int32)
    for k in range(N):
        size = tl.where(i >= k, tl.abs(tl.sum(tl.where(j == k, a, 0.0), 2, keep_dims=True)), -1.0)
        place = tl.argmax(size, 1, keep_dims=True)
        upper, chosen = _row(a, i, k), _row(a, i, place)
        a = tl.where(i == k, chosen, tl.where(i == place, upper, a))
        upper_side, chosen_side = _row(x, i, k), _row(x, i, place)
        x = tl.where(i == k, chosen_side, tl.where(i == place, upper_side, x))
        pivot = tl.sum(tl.where(j == k, chosen, 0.0), 2, keep_dims=True)
        wrong = tl.where(pivot == 0.0, 1, wrong)
        factor = tl.sum(tl.where(j == k, a, 0.0), 2, keep_dims=True) / pivot
        a = tl.where(i > k, a - factor * chosen, a)
        x = tl.where(i > k, x - factor * chosen_side, x)
    for back in range(N):
        k = N - 1 - back
        above = tl.sum(tl.where(j == k, a, 0.0), 2, keep_dims=True)
        found = _row(x, i, k) / _row(above, i, k)
        x = tl.where(i == k, found, tl.where(i < k, x - above * found, x))
    tl.store(out + system * N * K + i * K + c, x, mask=inside)
    tl.store(singular + system, wrong, mask=here)


@triton.jit
def _row(tile, i, place):
    """The row of each system that ``place`` says."""
    return tl.sum(tl.where(i == place, tile, 0.0), 1, keep_dims=True)


@triton.jit
def _matrix_gradient(out, g, x, N, K, ROWS: tl.constexpr):
    """-G X^T of one system, column by column."""
    system = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    total = tl.zeros([ROWS, ROWS], tl.float32)
    for k in range(K):
        g_k = tl.load(g + system * N * K + i * K + k, mask=i < N, other=0.0)
        total -= g_k * tl.load(x + system * N * K + j * K + k, mask=j < N, other=0.0)
    tl.store(out + system * N * N + i * N + j, total, mask=(i < N) & (j < N))


SOLVE, MATRIX = Kernel(_solve), Kernel(_matrix_gradient)


@functools.cache
def _at(N: int, K: int) -> tuple[Launch, int, int]:
    chosen = CONFIGS.pick("solve", dtype=torch.float32, N=N)
    rows, columns = triton.next_power_of_2(N), min(triton.next_power_of_2(K), WIDEST)
    systems = max(1, chosen.pop("NUMBERS") // (rows * max(rows, columns)))
    return SOLVE.at(SYSTEMS=systems, ROWS=rows, COLUMNS=columns, **chosen), systems, columns


@functools.cache
def _matrix_at(N: int) -> Launch:
    return MATRIX.at(ROWS=triton.next_power_of_2(N), **CONFIGS.pick("matrix", dtype=torch.float32, N=N))


def _run(out: Tensor, singular: Tensor, sides: Tensor, matrix: Tensor, transposed: bool) -> None:
    batch, N, K = sides.shape
    launch, systems, columns = _at(N, K)
    row, column = (1, N) if transposed else (N, 1)
    grid = (triton.cdiv(batch, systems), triton.cdiv(K, columns), 1)
    launch(grid, out, singular, sides, matrix, batch, N, K, row, column)


def forward(A: Tensor, B: Tensor, out: Any = None) -> Tensor:
    made = B.new_empty(B.shape) if out is None else out
    if made.numel():
        sides = as_batch(as_columns(A, B))
        singular = torch.empty(len(sides), dtype=torch.int32, device=A.device)
        _run(as_batch(as_columns(A, made)), singular, sides, as_batch(A), False)
        raise_if_singular(singular)
    return made


def backward(
    grad: Tensor, A: Tensor, B: Tensor, output: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    to_A, to_B = (A.new_empty(A.shape if needs[0] else 0), B.new_empty(B.shape)) if out is None else out
    if not B.numel():
        return to_A.zero_(), to_B
    flow, solved = as_batch(as_columns(A, grad)), as_batch(as_columns(A, to_B))
    _run(solved, torch.empty(len(flow), dtype=torch.int32, device=A.device), flow, as_batch(A), True)
    if needs[0]:
        batch, N, K = flow.shape
        _matrix_at(N)((batch, 1, 1), to_A, solved, as_batch(as_columns(A, output)), N, K)
    return to_A, to_B
