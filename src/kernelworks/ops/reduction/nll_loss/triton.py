"""nll_loss on the GPU: one program sums the rows, in float64; a gradient is written by tiles of a row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.ops.reduction.nll_loss import check_target
from kernelworks.ops.reduction.nll_loss.contract import REDUCTIONS, loss_shape

CONFIGS = configs(__file__)


@kernel
def _row_weights(target, weight, row, N, C, ignored):
    """Classes, what the rows weigh in float64, which count; a class that is none weighs NaN."""
    class_ = tl.load(target + row, mask=row < N, other=0)
    counts = (row < N) & (class_ != ignored)
    known = counts & (class_ >= 0) & (class_ < C)
    scale = tl.where(known, 1.0, float("nan")).to(tl.float64)
    if weight is not None:
        scale = scale * tl.load(weight + class_, mask=known, other=0.0).to(tl.float64)
    return class_, tl.where(counts, scale, 0.0), known


@kernel
def _losses(
    x, target, weight, loss, total, N, C, ignored, step, stride, REDUCTION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """REDUCTION: 0 each row's, 1 the mean, 2 the sum; ``total`` takes what all rows weigh."""
    sum_ = tl.zeros([BLOCK], tl.float64)
    weights = tl.zeros([BLOCK], tl.float64)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    last = first + BLOCK if REDUCTION == 0 else N
    for begin in range(first, last, BLOCK):
        row = begin + tl.arange(0, BLOCK).to(tl.int64)
        class_, scale, known = _row_weights(target, weight, row, N, C, ignored)
        value = tl.load(x + row * step + class_ * stride, mask=known, other=0.0).to(tl.float64)
        each = tl.where(known | (scale != scale), -scale * value, 0.0)
        if REDUCTION == 0:
            tl.store(loss + row, each.to(tl.float32), mask=row < N)
        sum_ += each
        weights += scale
    if REDUCTION != 0:
        all_weights = tl.sum(weights, 0)
        made = tl.sum(sum_, 0)
        if REDUCTION == 1:
            made = made / all_weights
        if loss is not None:
            tl.store(loss, made.to(tl.float32))
        if total is not None:
            tl.store(total, all_weights)


@kernel
def _gradient(
    target, weight, grad, total, made, N, C, ignored, REDUCTION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    class_, scale, known = _row_weights(target, weight, row, N, C, ignored)
    flow = tl.load(grad + (row if REDUCTION == 0 else 0)).to(tl.float64) * -scale
    if REDUCTION == 1:
        flow = flow / tl.load(total)
    here = (column == class_) & known
    tl.store(made + row * C + column, tl.where(here, flow, 0.0).to(tl.float32), mask=column < C)


LOSSES, GRADIENT = Kernel(_losses), Kernel(_gradient)


def _run(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, loss: Any, total: Any
) -> None:
    (N, C), code = x.shape, REDUCTIONS.index(reduction)
    chosen = CONFIGS.pick("losses", N=C, dtype=x.dtype)
    programs = triton.cdiv(N, chosen["BLOCK"]) if code == 0 else 1
    if programs:
        LOSSES.at(REDUCTION=code, **chosen)(
            (programs, 1, 1), x, target.contiguous(), None if weight is None else weight.contiguous(), loss, total,
            N, C, ignore_index, x.stride(0), x.stride(1),
        )  # fmt: skip


def forward(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, out: Any = None
) -> Tensor:
    if not x.is_cuda and not x.is_meta:
        check_target(x, target, ignore_index)
    loss: Tensor = x.new_empty(loss_shape(x, reduction)) if out is None else out
    _run(x, target, weight, ignore_index, reduction, loss, None)
    return loss


def backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, out: Any = None
) -> Tensor:
    made: Tensor = x.new_empty(x.shape) if out is None else out
    if not made.numel():
        return made
    total = None
    if reduction == "mean":
        total = torch.empty((), dtype=torch.float64, device=x.device)
        _run(x, target, weight, ignore_index, reduction, None, total)
    chosen = CONFIGS.pick("gradient", N=x.shape[1], dtype=x.dtype)
    chosen["BLOCK"] = min(chosen["BLOCK"], triton.next_power_of_2(x.shape[1]))
    GRADIENT.at(REDUCTION=REDUCTIONS.index(reduction), **chosen)(
        (x.shape[0], triton.cdiv(x.shape[1], chosen["BLOCK"]), 1), target.contiguous(),
        None if weight is None else weight.contiguous(), grad.contiguous(), total, made, x.shape[0], x.shape[1],
        ignore_index,
    )  # fmt: skip
    return made
