"""cross_entropy on the GPU: a row is cut into pieces, one program each, that tell each other their maxima and sums.

A piece stays in registers from the moment it is read until its part of the gradient is written, so that a training step
reads the logits once. That needs the sum over the whole row in between: every program publishes what it has and waits
for the other pieces of its row. Programs take pieces in the order in which they start, so the pieces of the oldest
unfinished row are always running, and nothing waits for a program that cannot start.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, interpreting
from kernelworks.contract.memory_layout import as_rows
from kernelworks.tile.exp import exp, exp_to_add

CONFIGS = configs(__file__)
MOST_PIECES = 16  # of a row whose programs wait for each other; far fewer than run at a time
SHORT = 128  # rows below this have a bound too narrow for the quick exponential


@triton.jit
def _stretched(v, top, factor, EXACT: tl.constexpr):
    """e^(v - top) factor, also where the exponential alone would be too small for float32's normal range."""
    if EXACT:
        return exp(v - top) * factor
    half = tl.exp2((v - top) * 0.7213475204444817)  # log2(e) / 2
    return half * factor * half


@triton.jit
def _row_scale(tops, sums, row, S, PIECES: tl.constexpr):
    """Maximum of a row and 1 / (the sum of its exponentials), from what its pieces published."""
    piece = tl.arange(0, PIECES)
    known = tl.load(tops + row * S + piece, mask=piece < S, other=float("-inf"), cache_modifier=".cg")
    parts = tl.load(sums + row * S + piece, mask=piece < S, other=0.0, cache_modifier=".cg")
    top = tl.max(known, 0)
    return top, 1.0 / tl.sum(parts * exp(known - top), 0)


@triton.jit
def _flow(grad, count, grad_stride, row, wanted, N):
    """What flows into a row's logits; NaN where its target is no class."""
    flow = 1.0
    if grad is not None:
        flow = tl.load(grad + row * grad_stride).to(tl.float32)
    if count is not None:
        flow = tl.div_rn(flow, tl.load(count).to(tl.float32))
    return tl.where((wanted >= 0) & (wanted < N), flow, float("nan"))


@triton.jit
def _prepare(target, count, turn, M, ignore_index, BLOCK: tl.constexpr):
    """Counts the rows that are not ignored; sets the counters of `_step` to 0 (one for turns, one a row)."""
    lane = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, M, BLOCK):
        inside = begin + lane < M
        if count is not None:
            wanted = tl.load(target + begin + lane, mask=inside, other=0)
            found += (inside & (wanted != ignore_index)).to(tl.int32)
        if turn is not None:
            tl.store(turn + 1 + begin + lane, tl.zeros([BLOCK], tl.int32), mask=inside)
    if count is not None:
        tl.store(count, tl.sum(found, 0))
    if turn is not None:
        tl.store(turn, 0)


@triton.jit
def _step(
    logits, target, grad, count, gradient, tops, sums, owns, turn, stride, grad_stride, N, S, ignore_index,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of one piece of a row; with `gradient` also that, as soon as the row's other pieces are known."""
    item = tl.program_id(0)
    if turn is not None:
        item = tl.atomic_add(turn, 1, sem="relaxed")
    row, piece = (item // S).to(tl.int64), item % S
    column = piece * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    wanted = tl.load(target + row)
    if wanted == ignore_index:
        if gradient is not None:
            tl.store(gradient + row * N + column, tl.zeros([BLOCK], tl.float32), mask=inside)
    else:
        read = tl.load(logits + row * stride + column, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        v = read.to(tl.float32)
        top = tl.max(v, 0)
        total = tl.sum(exp_to_add(v - tl.where(top == float("-inf"), 0.0, top)), 0)  # -inf throughout adds nothing
        tl.store(tops + row * S + piece, top)
        tl.store(sums + row * S + piece, total)
        mine = (wanted >= piece * BLOCK) & (wanted < tl.minimum(piece * BLOCK + BLOCK, N))
        own = tl.load(logits + row * stride + wanted, mask=mine, other=0.0).to(tl.float32)
        if mine:
            tl.store(owns + row, own)
        if gradient is not None:
            factor = _flow(grad, count, grad_stride, row, wanted, N)
            scale = 1.0 / total
            if turn is not None:
                tl.debug_barrier()
                tl.atomic_add(turn + 1 + row, 1, sem="release")
                while tl.atomic_add(turn + 1 + row, 0, sem="acquire") < S:
                    pass
                top, scale = _row_scale(tops, sums, row, S, PIECES)
            tl.store(gradient + row * N + column, _stretched(v, top, scale * factor, EXACT), mask=inside)
            if mine:
                tl.debug_barrier()  # over what was stored there a moment ago
                tl.store(gradient + row * N + wanted, (exp(own - top) * scale - 1.0) * factor)


@triton.jit
def _short(
    logits, target, grad, count, gradient, tops, sums, owns, stride, grad_stride, M, N, ignore_index,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """`_step` for several whole rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < M)[:, None] & (column < N)
    wanted = tl.load(target + row, mask=row < M, other=ignore_index)
    v = tl.load(logits + row[:, None] * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(v, 1)
    total = tl.sum(exp_to_add(v - top[:, None]), 1)
    tl.store(tops + row, top, mask=row < M)
    tl.store(sums + row, total, mask=row < M)
    own = column == wanted[:, None]
    tl.store(owns + row, tl.sum(tl.where(own, v, 0.0), 1), mask=row < M)
    if gradient is not None:
        flow = 1.0
        if grad is not None:
            flow = tl.load(grad + row * grad_stride, mask=row < M, other=0.0).to(tl.float32)
        if count is not None:
            flow = tl.div_rn(flow, tl.load(count).to(tl.float32))
        flow = tl.where((wanted >= 0) & (wanted < N), flow, float("nan"))
        p = _stretched(v, top[:, None], (1.0 / total)[:, None], EXACT)
        d = tl.where(own, p - 1.0, p) * flow[:, None]
        d = tl.where((wanted == ignore_index)[:, None], 0.0, d)
        tl.store(gradient + row[:, None] * N + column, d, mask=inside)


@triton.jit
def _rescale(
    logits, target, grad, count, gradient, tops, sums, owns, stride, grad_stride, M, N, S, ignore_index,
    BLOCK: tl.constexpr, PIECES: tl.constexpr, EXACT: tl.constexpr, ONES: tl.constexpr,
):  # fmt: skip
    """The gradient from logits and what `_step` published. With ONES, rows into which 1 flows are right already."""
    parts = tl.cdiv(N, BLOCK)
    for item in range(tl.program_id(0).to(tl.int64), M * parts, tl.num_programs(0)):
        row, begin = item // parts, (item % parts) * BLOCK
        column = begin + tl.arange(0, BLOCK)
        inside = column < N
        wanted = tl.load(target + row)
        done = False
        if ONES:
            done = tl.load(grad + row * grad_stride) == 1.0
        if not done:
            if wanted == ignore_index:
                tl.store(gradient + row * N + column, tl.zeros([BLOCK], tl.float32), mask=inside)
            else:
                factor = _flow(grad, count, grad_stride, row, wanted, N)
                top, scale = _row_scale(tops, sums, row, S, PIECES)
                v = tl.load(logits + row * stride + column, mask=inside, other=0.0).to(tl.float32)
                tl.store(gradient + row * N + column, _stretched(v, top, scale * factor, EXACT), mask=inside)
                if (wanted >= begin) & (wanted < tl.minimum(begin + BLOCK, N)):
                    tl.debug_barrier()
                    tl.store(gradient + row * N + wanted, (exp(tl.load(owns + row) - top) * scale - 1.0) * factor)


@triton.jit
def _finish(
    target, tops, sums, owns, loss, totals, counts, M, N, S, ignore_index,
    ROWS: tl.constexpr, PIECES: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """Losses of some rows: each of them (`totals` is None), or their sum (`loss` is None), or both at once: the end."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    piece = tl.arange(0, PIECES)[None, :]
    wanted = tl.load(target + row, mask=row < M, other=ignore_index)
    counted = wanted != ignore_index
    known = counted[:, None] & (piece < S)
    top_of = tl.load(tops + row[:, None] * S + piece, mask=known, other=float("-inf"))
    sum_of = tl.load(sums + row[:, None] * S + piece, mask=known, other=0.0)
    top = tl.max(top_of, 1)
    total = tl.sum(sum_of * exp(top_of - top[:, None]), 1)
    is_class = (wanted >= 0) & (wanted < N)
    own = tl.load(owns + row, mask=counted & is_class, other=float("nan")).to(tl.float64)
    losses = tl.where(counted, tl.log(total).to(tl.float64) + (top.to(tl.float64) - own), 0.0)
    if totals is None:
        tl.store(loss + row, losses.to(tl.float32), mask=row < M)
    else:
        sum_, count = tl.sum(losses, 0), tl.sum(counted.to(tl.int32), 0)
        if loss is None:
            tl.store(totals + tl.program_id(0), sum_)
            tl.store(counts + tl.program_id(0), count)
        else:
            if MEAN:
                sum_ = sum_ / count.to(tl.float64)
            tl.store(loss, sum_.to(tl.float32))


@triton.jit
def _total(totals, counts, loss, K, BLOCK: tl.constexpr, MEAN: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    sum_, count = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.int32)
    for begin in range(0, K, BLOCK):
        inside = begin + lane < K
        sum_ += tl.load(totals + begin + lane, mask=inside, other=0.0)
        count += tl.load(counts + begin + lane, mask=inside, other=0)
    result = tl.sum(sum_, 0)
    if MEAN:
        result = result / tl.sum(count, 0).to(tl.float64)
    tl.store(loss, result.to(tl.float32))


PREPARE, STEP, SHORT_STEP, RESCALE = Kernel(_prepare), Kernel(_step), Kernel(_short), Kernel(_rescale)
FINISH, TOTAL = Kernel(_finish), Kernel(_total)


class Shape:
    """How rows of N logits are cut, and the launches for that. Made once for each N and dtype."""

    def __init__(self, n: int, dtype: torch.dtype) -> None:
        exact = dtype == torch.float32 or n < SHORT
        settings = CONFIGS.pick("step", N=n, dtype=dtype)
        self.block = min(settings["BLOCK"], triton.next_power_of_2(n))
        self.pieces = -(-n // self.block)
        self.rows = settings.get("ROWS", 1) if self.pieces == 1 else 1
        slots, warps = triton.next_power_of_2(self.pieces), settings["num_warps"]
        self.short = SHORT_STEP.at(BLOCK=self.block, ROWS=self.rows, EXACT=exact, num_warps=warps)
        self.step = STEP.at(BLOCK=self.block, PIECES=slots, EXACT=exact, num_warps=warps)
        again = CONFIGS.pick("rescale", N=n, dtype=dtype)
        again["BLOCK"] = min(again["BLOCK"], triton.next_power_of_2(n))
        self.rescale = RESCALE.at(PIECES=slots, EXACT=exact, ONES=True, **again)
        self.gradient = RESCALE.at(PIECES=slots, EXACT=exact, ONES=False, **again)
        self.again_pieces, self.programs = -(-n // again["BLOCK"]), 132 * 8
        self.finish_rows = max(1, 1024 // slots)
        # Not fused: a product that one lane rounds and its neighbour fuses into the sum of both makes two sums an ulp
        # apart, and Triton lets both lanes write "the" sum to one place in shared memory.
        self.finish = {
            mean: FINISH.at(ROWS=self.finish_rows, PIECES=slots, MEAN=mean, num_warps=4, enable_fp_fusion=False)
            for mean in (0, 1)
        }


shape = functools.cache(Shape)
TOTALS = {mean: TOTAL.at(BLOCK=1024, MEAN=mean, num_warps=4) for mean in (0, 1)}
COUNT = PREPARE.at(BLOCK=1024, num_warps=4)


def count_valid_rows(target: Tensor, ignore_index: int) -> Tensor:
    """How many rows are not ignored, on the device."""
    count = torch.empty(1, dtype=torch.int32, device=target.device)
    COUNT((1, 1, 1), target, count, None, target.shape[0], ignore_index)
    return count


class PartialSums:
    """What the pieces of some rows tell each other: maxima and sums, and every row's logit of its target."""

    def __init__(self, m: int, cut: Shape, device: torch.device) -> None:
        self.tops = torch.empty((m, cut.pieces), dtype=torch.float32, device=device)
        self.sums = torch.empty((m, cut.pieces), dtype=torch.float32, device=device)
        self.owns = torch.empty(m, dtype=torch.float32, device=device)

    def rows(self, begin: int, end: int) -> PartialSums:
        part = object.__new__(PartialSums)
        part.tops, part.sums, part.owns = self.tops[begin:end], self.sums[begin:end], self.owns[begin:end]
        return part


class Rows:
    """Some rows of logits as the kernels take them. ``count`` is what their gradient is divided by, None for 1."""

    def __init__(
        self, logits: Tensor, target: Tensor, ignore_index: int, count: Tensor | None = None,
        published: PartialSums | None = None,
    ) -> None:  # fmt: skip
        self.m, self.n = logits.shape
        self.cut: Shape = shape(self.n, logits.dtype)
        self.logits, self.target = as_rows(logits), target.contiguous()
        self.stride = self.logits.stride(0) if self.m > 1 else self.n
        self.ignore_index, self.count = ignore_index, count
        self.published = published or PartialSums(self.m, self.cut, logits.device)

    def step(self, gradient: Tensor | None = None, grad: Tensor | None = None) -> None:
        """Publishes sums; writes the gradient where one is given, for ``grad`` (1 where it is None).

        ``gradient`` may be the logits themselves, if those are contiguous.
        """
        if not self.m:
            return
        cut, found = self.cut, self.published
        together = cut.pieces > 1 and gradient is not None
        turn = None
        if together and cut.pieces <= MOST_PIECES and not interpreting():
            turn = torch.empty(self.m + 1, dtype=torch.int32, device=self.logits.device)
            COUNT((1, 1, 1), self.target, None, turn, self.m, self.ignore_index)
        later = together and turn is None
        grad_stride = int(grad is not None and grad.dim() == 1)
        if cut.rows > 1:
            cut.short(
                (-(-self.m // cut.rows), 1, 1), self.logits, self.target, grad, self.count, gradient, found.tops,
                found.sums, found.owns, self.stride, grad_stride, self.m, self.n, self.ignore_index,
            )  # fmt: skip
            return
        cut.step(
            (self.m * cut.pieces, 1, 1), self.logits, self.target, grad, self.count, None if later else gradient,
            found.tops, found.sums, found.owns, turn, self.stride, grad_stride, self.n, cut.pieces, self.ignore_index,
        )  # fmt: skip
        if later:
            self.recompute_gradient(cut.gradient, gradient, grad)

    def recompute_gradient(self, kernel: Launch, gradient: Tensor | None, grad: Tensor | None) -> None:
        """The gradient from the logits, once all that the pieces publish is there."""
        cut, found = self.cut, self.published
        if self.m:
            kernel(
                (min(self.m * cut.again_pieces, cut.programs), 1, 1), self.logits, self.target, grad, self.count,
                gradient, found.tops, found.sums, found.owns, self.stride, int(grad is not None and grad.dim() == 1),
                self.m, self.n, cut.pieces, self.ignore_index,
            )  # fmt: skip


def finish(
    published: PartialSums, target: Tensor, cut: Shape, n: int, ignore_index: int, reduction: str, loss: Tensor
) -> Tensor:
    """The loss from what the rows of ``target`` published, into ``loss``."""
    m, mean = target.shape[0], int(reduction == "mean")
    blocks = max(1, -(-m // cut.finish_rows))
    each, one = reduction == "none", blocks == 1
    totals = counts = None if each else published.sums  # anything, where one program sees the end of it
    if not each and not one:
        totals = torch.empty(blocks, dtype=torch.float64, device=loss.device)
        counts = torch.empty(blocks, dtype=torch.int32, device=loss.device)
    cut.finish[mean](
        (blocks, 1, 1), target, published.tops, published.sums, published.owns, loss if each or one else None, totals,
        counts, m, n, cut.pieces, ignore_index,
    )  # fmt: skip
    if not each and not one:
        TOTALS[mean]((1, 1, 1), totals, counts, loss, blocks)
    return loss


def _loss(rows: Rows, reduction: str, out: Tensor | None) -> Tensor:
    loss = out
    if loss is None:
        loss = torch.empty(rows.m if reduction == "none" else (), dtype=rows.logits.dtype, device=rows.logits.device)
    return finish(rows.published, rows.target, rows.cut, rows.n, rows.ignore_index, reduction, loss)


def _rows(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Rows:
    """Rows whose gradient is wanted."""
    target = target.contiguous()
    return Rows(logits, target, ignore_index, count_valid_rows(target, ignore_index) if reduction == "mean" else None)


def forward(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Tensor | None = None) -> Tensor:
    rows = Rows(logits, target, ignore_index)
    rows.step()
    return _loss(rows, reduction, out)


def backward(
    grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Any = None
) -> Tensor:
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device) if out is None else out
    _rows(logits, target, ignore_index, reduction).step(gradient, grad.contiguous())
    return gradient


def training(
    logits: Tensor, target: Tensor, ignore_index: int, reduction: str, needs: list[bool]
) -> tuple[Tensor, Any]:
    """The loss, and what `resumed` needs: the gradient for a 1 that flows in, and how the rows were summed."""
    rows = _rows(logits, target, ignore_index, reduction)
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    rows.step(gradient)
    return _loss(rows, reduction, None), (rows, gradient)


def resumed(kept: Any, grad: Tensor) -> tuple[Tensor]:
    """The gradient: as it was kept where 1 flows in (the kernel looks), else made again from the logits."""
    rows, gradient = kept
    rows.recompute_gradient(rows.cut.rescale, gradient, grad.contiguous())
    return (gradient,)
