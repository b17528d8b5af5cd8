"""Where a program of an elementwise kernel works, and how tensors of any strides are handed to such kernels.

Contiguous tensors are one line of elements: program p takes ``COLUMNS`` of them (``ROWS = 0``). Others are rows of unit
column stride: program (p, q) takes ``ROWS`` rows and ``COLUMNS`` columns.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Launch
from kernelworks.contract.memory_layout import as_rows

WIDEST = 2048  # columns of a tile of rows
TILE = 2048  # elements of a tile of rows
MOST_COLUMN_TILES = 65535  # CUDA's limit of the second grid dimension


@triton.jit
def whole(M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Whether every element of this program's tile exists: then nothing needs a mask, and loads are 16 bytes wide
    whatever N is."""
    if ROWS == 0:
        return (tl.program_id(0) + 1).to(tl.int64) * COLUMNS <= N
    else:
        return ((tl.program_id(0) + 1) * ROWS <= M) & ((tl.program_id(1) + 1) * COLUMNS <= N)


@triton.jit
def inside(M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which elements of this program's tile exist."""
    column = tl.arange(0, COLUMNS)
    if ROWS == 0:
        return column < N - tl.program_id(0).to(tl.int64) * COLUMNS
    else:
        row = tl.arange(0, ROWS)
        return (row < M - tl.program_id(0) * ROWS)[:, None] & (column < N - tl.program_id(1) * COLUMNS)[None, :]


@triton.jit
def tile(pointer, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to the elements of this program's tile of a tensor. ``stride`` lies between rows."""
    column = tl.arange(0, COLUMNS)
    if ROWS == 0:
        return pointer + tl.program_id(0).to(tl.int64) * COLUMNS + column
    else:
        first = tl.program_id(0).to(tl.int64) * ROWS * stride + tl.program_id(1) * COLUMNS
        row = tl.arange(0, ROWS).to(tl.int64) * stride
        return pointer + first + row[:, None] + column[None, :]


class Pointwise:
    """Launches one elementwise kernel on dense outputs and any inputs, all of one shape and dtype.

    The kernel's arguments are the outputs, the inputs, M, N, then the row strides of the inputs; that of the outputs is
    N. Where everything lies in the same order in memory, ``flat(binary digits of the number of elements, dtype)`` gives
    the launch and the columns of a program, else ``strided(ROWS, COLUMNS, dtype)`` the launch. Outputs in another order
    than that of their dimensions are then written by a copy.
    """

    def __init__(
        self, flat: Callable[[int, torch.dtype], tuple[Launch, int]], strided: Callable[[int, int, torch.dtype], Launch]
    ) -> None:
        self.flat, self.strided = flat, strided

    def __call__(self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> None:
        for t in inputs:
            if not t.is_contiguous():
                return self._any(outputs, inputs)
        return self._line(outputs, inputs)

    def _line(self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> None:
        n = inputs[0].numel()
        launch, block = self.flat(n.bit_length(), inputs[0].dtype)
        launch((triton.cdiv(n, block), 1, 1), *outputs, *inputs, 1, n, *(0 for _ in inputs))

    def _any(self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> None:
        n, order, dtype = outputs[0].numel(), outputs[0].stride(), outputs[0].dtype
        if all(t.stride() == order for t in (*outputs, *inputs)):
            return self._line(outputs, inputs)
        shape = outputs[0].shape
        columns = shape[-1] if shape else 1
        made = [t if t.is_contiguous() else t.new_empty(shape) for t in outputs]
        if n:
            rows = [as_rows(t) for t in inputs]
            width = min(WIDEST, triton.next_power_of_2(columns))
            height = max(1, TILE // width)
            grid = (triton.cdiv(n // columns, height), triton.cdiv(columns, width), 1)
            if grid[1] > MOST_COLUMN_TILES:
                raise ValueError(f"a strided tensor may have up to {MOST_COLUMN_TILES * WIDEST} columns, got {columns}")
            strides = [t.stride(0) if t.dim() == 2 and not t.is_contiguous() else columns for t in rows]
            self.strided(height, width, dtype)(grid, *made, *rows, n // columns, columns, *strides)
        for target, value in zip(outputs, made, strict=True):
            if target is not value:
                target.copy_(value)
        return None
