"""combine on the GPU: a program adds up some columns of a token's rows; of the gradient, of what names a row."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, kernel
from kernelworks.contract.memory_layout import as_rows

CONFIGS = configs(__file__)


@kernel
def _place(places, choice, rows):
    """The row that a choice names, and whether it is one."""
    place = tl.load(places + choice).to(tl.int64)
    return place, (place >= 0) & (place < rows)


@triton.jit
def _forward(out, x, weights, places, rows, width, k, stride, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(k):
        place, named = _place(places, token * k + j, rows)
        if named:
            row = tl.load(x + place * stride + column, mask=column < width, other=0.0).to(tl.float32)
            total += tl.load(weights + token * k + j).to(tl.float32) * row
    tl.store(out + token * width + column, total, mask=column < width)


@triton.jit
def _of_rows(out, grad, weights, starts, choices, width, k, stride, BLOCK: tl.constexpr):
    # choices[starts[r]:starts[r + 1]] name row r
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(tl.load(starts + row), tl.load(starts + row + 1)):
        choice = tl.load(choices + i)
        flow = tl.load(grad + choice // k * stride + column, mask=column < width, other=0.0).to(tl.float32)
        total += tl.load(weights + choice).to(tl.float32) * flow
    tl.store(out + row * width + column, total, mask=column < width)


@triton.jit
def _of_weights(out, grad, x, places, rows, width, k, grad_stride, stride, BLOCK: tl.constexpr):
    choice = tl.program_id(0).to(tl.int64)
    place, named = _place(places, choice, rows)
    total = tl.zeros([BLOCK], tl.float32)
    if named:
        for first in range(0, width, BLOCK):
            column = first + tl.arange(0, BLOCK)
            flow = tl.load(grad + choice // k * grad_stride + column, mask=column < width, other=0.0)
            row = tl.load(x + place * stride + column, mask=column < width, other=0.0)
            total += flow.to(tl.float32) * row.to(tl.float32)
    tl.store(out + choice, tl.sum(total, 0))


FORWARD, OF_ROWS, OF_WEIGHTS = Kernel(_forward), Kernel(_of_rows), Kernel(_of_weights)


@functools.cache
def _launch(which: Kernel, name: str, width: int, dtype: torch.dtype) -> tuple[Launch, int]:
    """The launch, and the programs that the columns of a row take."""
    chosen = CONFIGS.pick(name, N=width, dtype=dtype)
    chosen["BLOCK"] = min(chosen["BLOCK"], triton.next_power_of_2(width))
    return which.at(**chosen), triton.cdiv(width, chosen["BLOCK"])


def forward(rows: Tensor, weights: Tensor, places: Tensor, out: Any = None) -> Tensor:
    (tokens, k), (many, width) = places.shape, rows.shape
    output: Tensor = rows.new_empty((tokens, width)) if out is None else out
    if output.numel():
        lines = as_rows(rows)
        launch, across = _launch(FORWARD, "forward", width, rows.dtype)
        launch(
            (tokens, across, 1), output, lines, weights.contiguous(), places.contiguous(), many, width, k,
            lines.stride(0),
        )  # fmt: skip
    return output


def backward(
    grad: Tensor, rows: Tensor, weights: Tensor, places: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    (tokens, k), (many, width) = places.shape, rows.shape
    flows = as_rows(grad)
    of_rows = rows.new_empty(rows.shape if needs[0] else 0) if out is None else out[0]
    of_weights = weights.new_empty(weights.shape if needs[1] else 0) if out is None else out[1]
    if needs[0] and of_rows.numel():
        flat = places.reshape(-1)
        named = torch.where((flat >= 0) & (flat < many), flat, many)  # what names no row comes last
        ordered, choices = torch.sort(named, stable=True)
        starts = torch.searchsorted(ordered, torch.arange(many + 1, device=flat.device, dtype=flat.dtype))
        launch, across = _launch(OF_ROWS, "of_rows", width, rows.dtype)
        launch(
            (many, across, 1), of_rows, flows, weights.contiguous(), starts, choices, width, k, flows.stride(0)
        )  # fmt: skip
    if needs[1] and not width:
        of_weights.zero_()
    elif needs[1] and of_weights.numel():
        lines = as_rows(rows)
        launch, _ = _launch(OF_WEIGHTS, "of_weights", width, rows.dtype)
        launch(
            (tokens * k, 1, 1), of_weights, flows, lines, places.contiguous(), many, width, k, flows.stride(0),
            lines.stride(0),
        )  # fmt: skip
    return of_rows, of_weights
