"""embedding_bag on the GPU: a program takes some columns of a bag; of the gradient, of a row of the table.

A call does not wait for the GPU to learn that its ids and offsets are right: the kernel leaves word of what is wrong
where the host sees it, and reads nothing there. The next call raises.
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
from kernelworks.ops.lookup.embedding_bag import places_of, rows_of
from kernelworks.ops.lookup.embedding_bag.contract import MODES

CONFIGS = configs(__file__)


@kernel
def _forward(
    ids, weight, offsets, scales, out, chosen, fault, padding, N, B, V, D, stride, MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """MODE: 0 a mean, 1 a sum, 2 a maximum, of which ``chosen`` takes the places. ``fault`` takes 1 + the place of an
    id outside the table and V, or minus (1 + the bag) of offsets that do not rise from 0 to at most N and N."""
    bag = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    begin = tl.load(offsets + bag).to(tl.int64)
    end = tl.load(offsets + bag + 1, mask=bag + 1 < B, other=N).to(tl.int64)
    if (begin < 0) | (end < begin) | (end > N) | ((bag == 0) & (begin != 0)):
        tl.store(fault, -1 - bag)
        tl.store(fault + 1, N)
        end = begin
    total = tl.zeros([BLOCK], tl.float32)
    at = tl.full([BLOCK], -1, tl.int64)
    count = begin - begin
    for i in range(begin, end):
        id_ = tl.load(ids + i).to(tl.int64)
        if (id_ < 0) | (id_ >= V):
            tl.store(fault, i + 1)
            tl.store(fault + 1, V)
        elif id_ != padding:
            row = tl.load(weight + id_ * stride + column, mask=inside, other=0.0).to(tl.float32)
            if scales is not None:
                row = row * tl.load(scales + i).to(tl.float32)
            if MODE == 2:
                after = (at < 0) | (row > total)
                total = tl.where(after, row, total)
                at = tl.where(after, i, at)
            else:
                total += row
            count += 1
    if MODE == 0:
        total = tl.div_rn(total, tl.maximum(count, 1).to(tl.float32))
    if out is not None:
        tl.store(out + bag * D + column, total.to(out.dtype.element_ty), mask=inside)
    if chosen is not None:
        tl.store(chosen + bag * D + column, at, mask=inside)


@kernel
def _of_weight(out, grad, starts, places, bags, factors, chosen, D, BLOCK: tl.constexpr):
    # places[starts[v]:starts[v + 1]] looked row v up
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(tl.load(starts + row), tl.load(starts + row + 1)):
        place = tl.load(places + i)
        bag = tl.load(bags + place)
        if bag >= 0:
            flow = tl.load(grad + bag * D + column, mask=inside, other=0.0).to(tl.float32)
            flow = flow * tl.load(factors + place)
            if chosen is not None:
                flow = tl.where(tl.load(chosen + bag * D + column, mask=inside, other=-1) == place, flow, 0.0)
            total += flow
    tl.store(out + row * D + column, total.to(out.dtype.element_ty), mask=inside)


@kernel
def _of_scales(out, grad, ids, weight, bags, V, D, stride, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    bag = tl.load(bags + place)
    id_ = tl.load(ids + place).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    if (bag >= 0) & (id_ >= 0) & (id_ < V):
        for first in range(0, D, BLOCK):
            column = first + tl.arange(0, BLOCK)
            flow = tl.load(grad + bag * D + column, mask=column < D, other=0.0).to(tl.float32)
            total += flow * tl.load(weight + id_ * stride + column, mask=column < D, other=0.0).to(tl.float32)
    tl.store(out + place, tl.sum(total, 0).to(out.dtype.element_ty))


def _message(place: int, size: int, which: str) -> str:
    if place < 0:
        return f"offsets must rise from 0 to at most {size}, the ids; {which} had others at bag {-1 - place}"
    return f"ids must be in [0, {size}), weight's rows; {which} had another at position {place - 1}"


FAULT = FaultWords(_message)
FORWARD, OF_WEIGHT, OF_SCALES = Kernel(_forward), Kernel(_of_weight), Kernel(_of_scales)


@functools.cache
def _launch(which: Kernel, name: str, D: int, dtype: torch.dtype, **fixed: int) -> tuple[Launch, int]:
    """The launch, and the programs that the columns of a row take."""
    chosen = CONFIGS.pick(name, D=D, dtype=dtype)
    chosen["BLOCK"] = min(chosen["BLOCK"], triton.next_power_of_2(D))
    return which.at(**fixed, **chosen), triton.cdiv(D, chosen["BLOCK"])


def _run(
    output: Tensor | None, chosen: Tensor | None, ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, scales: Any,
    padding: int | None,
) -> None:  # fmt: skip
    (V, D), B = weight.shape, offsets.numel()
    fault = FAULT.of(weight.device)
    if not B or not D:
        return
    launch, across = _launch(FORWARD, "forward", D, weight.dtype, MODE=MODES.index(mode))
    table = rows_of(weight)
    launch(
        (B, across, 1), ids.contiguous(), table, offsets.contiguous(),
        None if scales is None else scales.contiguous(), output, chosen, fault,
        -1 if padding is None else padding, ids.numel(), B, V, D, table.stride(0),
    )  # fmt: skip
    FAULT.raise_of_this_call(weight.device)


def forward(
    ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, scales: Tensor | None, padding: int | None, out: Any = None
) -> Tensor:
    output: Tensor = weight.new_empty((offsets.numel(), weight.shape[1])) if out is None else out
    _run(output, None, ids, weight, offsets, mode, scales, padding)
    return output


def backward(
    grad: Tensor, ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, scales: Tensor | None, padding: int | None,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (V, D), N = weight.shape, ids.numel()
    if out is None:
        of_weight = weight.new_empty(weight.shape if needs[0] else 0)
        of_scales = weight.new_empty(scales.shape if scales is not None and needs[1] else 0)
    else:
        of_weight, of_scales = out
    bags, factors = places_of(ids, offsets, mode, scales, padding)
    flow = grad.contiguous()
    if needs[0] and of_weight.numel():
        chosen = None
        if mode == "max":
            chosen = torch.empty(grad.shape, dtype=torch.int64, device=grad.device)
            _run(None, chosen, ids, weight, offsets, mode, None, padding)
        sorted_ids, places = torch.sort(ids.long(), stable=True)
        starts = torch.searchsorted(sorted_ids, torch.arange(V + 1, device=ids.device))
        launch, across = _launch(OF_WEIGHT, "weight", D, weight.dtype)
        launch((V, across, 1), of_weight, flow, starts, places, bags, factors, chosen, D)
    if needs[1] and N:
        table = rows_of(weight)
        launch, _ = _launch(OF_SCALES, "scales", max(D, 1), weight.dtype)
        launch((N, 1, 1), of_scales, flow, ids.contiguous(), table, bags, V, D, table.stride(0))
    return of_weight, of_scales
