"""csr_matmul on the GPU: a program takes some columns of one row's sum; of the gradient of values, some entries.

A call does not wait for the GPU to learn that rows and columns are right: see ``fault_words``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.fault_words import FaultWords
from kernelworks.build.triton import Kernel, Launch, configs, kernel
from kernelworks.ops.linalg.csr_matmul import as_matrix, empty_gradients
from kernelworks.ops.linalg.csr_matmul.contract import row_of_each

CONFIGS = configs(__file__)


@kernel
def _rows(
    out, crow, columns, values, dense, fault, M, N, K, D, stride, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """``fault`` takes 1 + the place of a column that is no row of dense and K, or minus (1 + the row) of entries that
    do not rise from 0 to N and N."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    begin, end = tl.load(crow + row).to(tl.int64), tl.load(crow + row + 1).to(tl.int64)
    if (begin < 0) | (end < begin) | (end > N) | ((row == 0) & (begin != 0)) | ((row == M - 1) & (end != N)):
        tl.store(fault, -1 - row)
        tl.store(fault + 1, N)
        end = begin
    total = tl.zeros([ENTRIES, COLUMNS], tl.float32)
    for first in range(begin, end, ENTRIES):
        i = first + tl.arange(0, ENTRIES)[:, None]
        column = tl.load(columns + i, mask=i < end, other=0).to(tl.int64)
        known = (column >= 0) & (column < K)
        tl.store(fault + tl.zeros([ENTRIES, 1], tl.int32), i + 1, mask=(i < end) & ~known)
        tl.store(fault + 1 + tl.zeros([ENTRIES, 1], tl.int32), K, mask=(i < end) & ~known)
        value = tl.load(values + i, mask=i < end, other=0.0).to(tl.float32)
        named = tl.load(dense + column * stride + j, mask=(i < end) & known & (j < D), other=0.0).to(tl.float32)
        total += value * named
    sums = tl.sum(total, 0, keep_dims=True)
    tl.store(out + row * D + j, sums.to(out.dtype.element_ty), mask=j < D)


@kernel
def _values(out, grad, rows, columns, dense, M, N, K, D, stride, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)[:, None]
    row = tl.load(rows + i, mask=i < N, other=0)
    column = tl.load(columns + i, mask=i < N, other=0).to(tl.int64)
    known = (row >= 0) & (row < M) & (column >= 0) & (column < K)
    total = tl.zeros([ENTRIES, COLUMNS], tl.float32)
    for first in range(0, D, COLUMNS):
        j = first + tl.arange(0, COLUMNS)[None, :]
        inside = (i < N) & known & (j < D)
        flow = tl.load(grad + row * D + j, mask=inside, other=0.0).to(tl.float32)
        total += flow * tl.load(dense + column * stride + j, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + i, tl.sum(total, 1, keep_dims=True).to(out.dtype.element_ty), mask=i < N)


def _message(place: int, size: int, which: str) -> str:
    if place < 0:
        return f"crow_indices must rise from 0 to {size}, the entries; {which} had others at row {-1 - place}"
    return f"col_indices must be in [0, {size}), dense's rows; {which} had another at position {place - 1}"


FAULT = FaultWords(_message)
ROWS, VALUES = Kernel(_rows), Kernel(_values)


@functools.cache
def _launch(which: Kernel, name: str, D: int, dtype: torch.dtype) -> tuple[Launch, int, int]:
    """The launch, and how many entries and columns a program takes."""
    chosen = CONFIGS.pick(name, D=D, dtype=dtype)
    chosen["COLUMNS"] = min(chosen["COLUMNS"], triton.next_power_of_2(D))
    return which.at(**chosen), chosen["ENTRIES"], chosen["COLUMNS"]


def _product(out: Tensor, crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> None:
    (rows, D), K = out.shape, dense.shape[0]
    fault = FAULT.of(out.device)
    if rows and D:
        launch, _, across = _launch(ROWS, "rows", D, dense.dtype)
        sizes = (rows, columns.numel(), K, D, dense.stride(0))
        launch((rows, triton.cdiv(D, across), 1), out, crow, columns, values, dense, fault, *sizes)
        FAULT.raise_of_this_call(out.device)


def forward(crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor, out: Any = None) -> Tensor:
    made = dense.new_empty((crow.numel() - 1, *dense.shape[1:])) if out is None else out
    named = (crow.contiguous(), columns.contiguous(), values.contiguous())
    _product(as_matrix(made), *named, as_matrix(dense))
    return made


def backward(
    grad: Tensor, crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    to_values, to_dense = empty_gradients(values, dense, needs) if out is None else out
    flow, rows, N = as_matrix(grad), row_of_each(crow, values.numel()), values.numel()
    if needs[0] and N:
        table = as_matrix(dense)
        launch, entries, _ = _launch(VALUES, "values", max(table.shape[1], 1), dense.dtype)
        across = (triton.cdiv(N, entries), 1, 1)
        sizes = (crow.numel() - 1, N, *table.shape, table.stride(0))
        launch(across, to_values, flow, rows, columns.contiguous(), table, *sizes)
    if needs[1]:
        by_column, places = torch.sort(columns.long(), stable=True)
        starts = torch.searchsorted(by_column, torch.arange(dense.shape[0] + 1, device=columns.device))
        _product(as_matrix(to_dense), starts, rows[places], values[places], flow)
    return to_values, to_dense
