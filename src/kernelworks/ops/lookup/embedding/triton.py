"""embedding on the GPU. An id outside the table is reported without waiting for the GPU: see README.md.

The backward sorts the ids, finds where each row of the table begins among them, and gives every row of the gradient to
one program, which adds up its places in a fixed order. What a row would wait long for, whole tiles of places that all
looked up the same row, is added up beforehand, by a program each.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs

CONFIGS = configs(__file__)


@triton.jit
def _forward(
    output, ids, weight, fault, M, V, D, weight_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr
):
    """``EVEN``: COLUMNS divides D."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64)
    if ROWS == 1:
        id_ = tl.load(ids + row).to(tl.int64)
        mask = None if EVEN else column < D
        if (id_ >= 0) & (id_ < V):
            tl.store(output + row * D + column, tl.load(weight + id_ * weight_stride + column, mask=mask), mask=mask)
        else:
            nothing = tl.full([COLUMNS], float("nan"), output.dtype.element_ty)
            tl.store(output + row * D + column, nothing, mask=mask)
            tl.store(fault, row + 1)
            tl.store(fault + 1, V)
    else:
        rows = row * ROWS + tl.arange(0, ROWS)
        there = rows < M
        ids_ = tl.load(ids + rows, mask=there, other=0).to(tl.int64)
        known = (ids_ >= 0) & (ids_ < V)
        inside = (column < D)[None, :]
        place = weight + ids_[:, None] * weight_stride + column[None, :]
        values = tl.load(place, mask=(there & known)[:, None] & inside, other=float("nan"))
        tl.store(output + rows[:, None] * D + column[None, :], values, mask=there[:, None] & inside)
        tl.store(fault + tl.zeros([ROWS], tl.int32), rows + 1, mask=there & ~known)
        tl.store(fault + 1 + tl.zeros([ROWS], tl.int32), V, mask=there & ~known)


@triton.jit
def _keys(keys, ids, n, V, BLOCK: tl.constexpr):
    """ids in 32 bits, which sort in two thirds of the time; V for one outside the table, which no row then finds."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    id_ = tl.load(ids + i, mask=i < n, other=0).to(tl.int64)
    tl.store(keys + i, tl.where((id_ >= 0) & (id_ < V), id_, V).to(tl.int32), mask=i < n)


@triton.jit
def _starts(starts, sorted_ids, n, V, STEPS, BLOCK: tl.constexpr):
    """How many of the sorted ids are less than v, for v from 0 to V, by bisection."""
    v = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    low = tl.zeros([BLOCK], tl.int64)
    high = low + n
    for _ in range(STEPS):
        middle = (low + high) // 2
        less = tl.load(sorted_ids + middle, mask=low < high, other=0).to(tl.int64) < v
        low, high = tl.where((low < high) & less, middle + 1, low), tl.where(less, high, middle)
    tl.store(starts + v, low, mask=v <= V)


@triton.jit
def _add_places(total, grad, places, first, last, grad_stride, column, D, ROWS: tl.constexpr):
    """total, and the rows of grad that places[first:last] name."""
    for start in range(first, last, ROWS):
        i = start + tl.arange(0, ROWS)
        place = tl.load(places + i, mask=i < last, other=0)
        where = grad + place[:, None] * grad_stride + column[None, :]
        rows = tl.load(where, mask=(i < last)[:, None] & (column < D)[None, :], other=0.0)
        total += tl.sum(rows.to(tl.float32), 0)
    return total


@triton.jit
def _pieces(
    partial, grad, sorted_ids, places, D, grad_stride, TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The sum over each tile of TILE sorted places that all looked up one row."""
    tile = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if tl.load(sorted_ids + tile * TILE) == tl.load(sorted_ids + tile * TILE + TILE - 1):
        total = tl.zeros([COLUMNS], tl.float32)
        total = _add_places(total, grad, places, tile * TILE, tile * TILE + TILE, grad_stride, column, D, ROWS)
        tl.store(partial + tile * D + column, total, mask=column < D)


@triton.jit
def _backward(
    grad_weight, grad, starts, places, partial, D, grad_stride, TILE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first, last = tl.load(starts + v), tl.load(starts + v + 1)
    total = tl.zeros([COLUMNS], tl.float32)
    # Whole tiles are added up already; what lies before and after them is not.
    first_tile, last_tile = (first + TILE - 1) // TILE, last // TILE
    if first_tile >= last_tile:
        total = _add_places(total, grad, places, first, last, grad_stride, column, D, ROWS)
    else:
        total = _add_places(total, grad, places, first, first_tile * TILE, grad_stride, column, D, ROWS)
        for start in range(first_tile, last_tile, ROWS):
            i = start + tl.arange(0, ROWS)
            where = partial + i[:, None] * D + column[None, :]
            total += tl.sum(tl.load(where, mask=(i < last_tile)[:, None] & (column < D)[None, :], other=0.0), 0)
        total = _add_places(total, grad, places, last_tile * TILE, last, grad_stride, column, D, ROWS)
    tl.store(grad_weight + v * D + column, total, mask=column < D)


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)
KEYS, STARTS, PIECES = Kernel(_keys), Kernel(_starts), Kernel(_pieces)
BLOCK = 256  # ids that a program of _keys takes, and rows of the table that one of _starts does


@functools.cache
def _forward_at(D: int, dtype: torch.dtype) -> tuple[Launch, int, int]:
    """The launch, and the rows and columns of a program."""
    chosen = CONFIGS.pick("forward", D=D, dtype=dtype)
    columns = min(triton.next_power_of_2(D), chosen.pop("COLUMNS"))
    rows = max(1, chosen.pop("ELEMENTS") // columns)
    return FORWARD.at(ROWS=rows, COLUMNS=columns, EVEN=D % columns == 0, **chosen), rows, columns


@functools.cache
def _backward_at(D: int, dtype: torch.dtype) -> tuple[Launch, Launch, int, int]:
    """The launches of _pieces and _backward, the places of a tile and the columns of a program."""
    chosen = CONFIGS.pick("backward", D=D, dtype=dtype)
    columns = min(triton.next_power_of_2(D), chosen.pop("COLUMNS"))
    rows = max(1, chosen.pop("ELEMENTS") // columns)
    tile = chosen["TILE"]
    fixed = {"ROWS": rows, "COLUMNS": columns, **chosen}
    return PIECES.at(**fixed), BACKWARD.at(**fixed), tile, columns


@functools.cache
def _faults(device: str) -> tuple[Tensor, Any]:
    """Two numbers that GPU and CPU both see: 1 + the position of an id outside the table, and the table's rows."""
    kept = torch.zeros(2, dtype=torch.int64, pin_memory=device == "cuda")
    return kept, (ctypes.c_int64 * 2).from_address(kept.data_ptr())


def _refuse(words: Any, which: str) -> None:
    position, V = words[0] - 1, words[1]
    words[0] = 0
    raise IndexError(f"ids must be in [0, {V}), weight's rows; {which} had another at position {position}")


def forward(ids: Tensor, weight: Tensor, out: Any = None) -> Tensor:
    V, D = weight.shape
    output: Tensor = weight.new_empty((*ids.shape, D)) if out is None else out
    n = ids.numel()
    fault, words = _faults(weight.device.type)
    if words[0]:
        _refuse(words, "an earlier call")
    if n and D:
        ids, rows = ids.contiguous(), _rows(weight)
        launch, height, width = _forward_at(D, weight.dtype)
        launch((-(-n // height), -(-D // width), 1), output, ids, rows, fault, n, V, D, rows.stride(0))
        if words[0] and not weight.is_cuda:
            _refuse(words, "this call")
    return output


def prepare_forward(ids: Tensor, weight: Tensor) -> Callable[..., Tensor] | None:
    """What serves calls like this one, with the launch fixed; None where something has to be copied first."""
    V, D = weight.shape
    n, shape = ids.numel(), (*ids.shape, D)
    if not weight.is_cuda or not ids.is_contiguous() or _rows(weight) is not weight or n * D == 0:
        return None
    fault, words = _faults("cuda")
    launch, height, width = _forward_at(D, weight.dtype)
    grid = (-(-n // height), -(-D // width), 1)
    again = launch.prepare_launch(grid, weight.new_empty(shape), ids, weight, fault, n, V, D, weight.stride(0))
    empty, dtype, device = torch.empty, weight.dtype, weight.device

    def run(ids: Tensor, weight: Tensor, out: Any = None) -> Tensor:
        output: Tensor = empty(shape, dtype=dtype, device=device) if out is None else out
        if words[0]:
            _refuse(words, "an earlier call")
        again(output, ids, weight, fault)
        return output

    return run


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()


def backward(grad: Tensor, ids: Tensor, weight: Tensor, needs: list[bool], out: Any = None) -> Tensor:
    V, D = weight.shape
    grad_weight: Tensor = weight.new_empty((V, D)) if out is None else out
    n = ids.numel()
    if n == 0 or D == 0:
        return grad_weight.zero_()
    rows = _rows(grad.reshape(n, D))
    keys = ids.reshape(-1)
    if ids.dtype == torch.int64 and V < 2**31 - 1:
        keys = ids.new_empty(n, dtype=torch.int32)
        KEYS.at(BLOCK=BLOCK, num_warps=4)((-(-n // BLOCK), 1, 1), keys, ids.contiguous(), n, V)
    sorted_ids, places = torch.sort(keys, stable=True)
    pieces, launch, tile, width = _backward_at(D, weight.dtype)
    starts = ids.new_empty(V + 1, dtype=torch.int64)
    across = -(-D // width)
    STARTS.at(BLOCK=BLOCK, num_warps=4)((-(-(V + 1) // BLOCK), 1, 1), starts, sorted_ids, n, V, n.bit_length())
    partial = weight.new_empty((max(1, n // tile), D), dtype=torch.float32)
    pieces((n // tile, across, 1), partial, rows, sorted_ids, places, D, rows.stride(0))
    launch((V, across, 1), grad_weight, rows, starts, places, partial, D, rows.stride(0))
    return grad_weight
