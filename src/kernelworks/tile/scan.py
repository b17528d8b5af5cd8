"""Scans of [outer, n, inner] along n, of any kind: which program takes what, and in which order.

A program takes a tile of LINES lines and BLOCK elements of each, in float64, and then the next tile of the same lines,
which starts from what all before it came to. A kind of scan is device functions:

    JOIN(before, after)       what two runs of neighbours come to
    SCAN(v, axis, BACK)       a tile scanned along an axis, from its end with BACK
    TOTAL(v, axis)            what a tile's lines come to

Rows are lines whose elements lie side by side, columns lines that lie side by side: the kernel is one. Where lines are
too few to fill a GPU they are cut into parts, by the shape alone: one launch for the totals of the parts, one that
scans each from what the parts before it came to.

A gradient that depends on x runs back over the line: ``flow[i] = grad[i] + slope[i] flow[i + 1]``. What stands before
each element is kept in float64 between the two launches; ALONG(before, x) is the slope of an element in the one before
it, ACROSS(before, x) that in its input.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, kernel
from kernelworks.contract.row_layout import Lines

PART = 8192  # elements that a part has at least


@kernel
def _scan(
    x, out, totals, lines, blocks, outer_stride, line_stride, stride, out_outer, out_line, out_stride, N, parts, length,
    JOIN: tl.constexpr, SCAN: tl.constexpr, TOTAL: tl.constexpr, NONE: tl.constexpr, BACK: tl.constexpr,
    UNIT: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A part of LINES lines: scanned, or with no ``out`` its total. UNIT: both strides are 1, and loads are wide."""
    program = tl.program_id(0).to(tl.int64)
    part = program % parts
    block = program // parts % blocks
    outer = program // parts // blocks
    line = block * LINES + tl.arange(0, LINES)[:, None]
    number = tl.arange(0, BLOCK)[None, :]
    inside = line < lines
    begin = part * length
    end = tl.minimum(begin + length, N)
    at = x + outer * outer_stride + line * line_stride
    carry = tl.full([LINES], NONE, tl.float64)
    mine = (outer * lines + block * LINES + tl.arange(0, LINES)) * parts
    if out is not None and totals is not None:
        other = tl.arange(0, PARTS)[None, :]
        before = (other > part) & (other < parts) if BACK else other < part
        carry = TOTAL(tl.load(totals + mine[:, None] + other, mask=inside & before, other=NONE), 1)
    tiles = tl.cdiv(end - begin, BLOCK)
    for tile in range(tiles):
        first = begin + (tiles - 1 - tile if BACK else tile) * BLOCK
        place = first + number
        mask = inside & (place < N)  # a part ends with a tile or with its line; N says how wide a load may be
        v = tl.load(at + (place if UNIT else place * stride), mask=mask, other=NONE, eviction_policy="evict_first").to(
            tl.float64
        )
        if out is not None:
            y = JOIN(carry[:, None], SCAN(v, 1, BACK))
            to = out + outer * out_outer + line * out_line + (place if UNIT else place * out_stride)
            tl.store(to, y if out.dtype.element_ty == tl.float64 else y.to(tl.float32), mask=mask)
        carry = JOIN(carry, TOTAL(v, 1))
    if out is None:
        tl.store(totals + mine + part, carry, mask=(block * LINES + tl.arange(0, LINES)) < lines)


@kernel
def _after(slope, flow, next_slope, next_flow):
    """Two runs of neighbours, each a map ``v -> slope v + flow`` of what comes from behind; the first is applied
    first."""
    return slope * next_slope, next_flow + next_slope * flow


@kernel
def _flow(
    x, grad, until, out, lines, blocks, outer_stride, line_stride, stride, grad_outer, grad_line, grad_stride,
    out_outer, out_line, out_stride, N,
    ALONG: tl.constexpr, ACROSS: tl.constexpr, NONE: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of LINES lines, from their ends. ``until``: the scan in float64, contiguous as ``out`` is."""
    program = tl.program_id(0).to(tl.int64)
    outer = program // blocks
    line = program % blocks * LINES + tl.arange(0, LINES)[:, None]
    number = tl.arange(0, BLOCK)[None, :]
    at = x + outer * outer_stride + line * line_stride
    flows = grad + outer * grad_outer + line * grad_line
    written = outer * out_outer + line * out_line
    carry = tl.zeros([LINES], tl.float64)
    tiles = tl.cdiv(N, BLOCK)
    for tile in range(tiles):
        place = (tiles - 1 - tile) * BLOCK + number
        inside = (line < lines) & (place < N)
        behind = (line < lines) & (place + 1 < N)
        after = tl.load(at + (place + 1) * stride, mask=behind, other=0.0).to(tl.float64)
        here = tl.load(until + written + place * out_stride, mask=inside, other=NONE)
        slope = tl.where(behind, ALONG(here, after), 0.0)
        g = tl.load(flows + place * grad_stride, mask=inside, other=0.0).to(tl.float64)
        slopes, sums = tl.associative_scan((slope, g), 1, _after, reverse=True)
        flow = sums + slopes * carry[:, None]
        v = tl.load(at + place * stride, mask=inside, other=0.0).to(tl.float64)
        before = tl.load(until + written + (place - 1) * out_stride, mask=inside & (place > 0), other=NONE)
        tl.store(out + written + place * out_stride, (flow * ACROSS(before, v)).to(tl.float32), mask=inside)
        carry = tl.sum(tl.where(number == 0, flow, 0.0), 1)


SCANNED, FLOW = Kernel(_scan), Kernel(_flow)


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))


def _as_tiles(x: Lines) -> tuple[int, int, int, int]:
    """Of lines of unit stride all are one block of them: how many blocks, lines in each, and their strides."""
    return (1, x.outer, 0, x.outer_stride) if x.inner == 1 else (x.outer, x.inner, x.outer_stride, 1)


class Scan:
    """Launches one kind of scan, of the functions above; ``none`` changes nothing that it is joined to. Without
    ``slopes``, ALONG and ACROSS, the gradient is the same scan from the other end."""

    def __init__(
        self, configs: Configs, *, join: Any, scan: Any, total: Any, none: float, slopes: tuple[Any, Any] | None = None
    ) -> None:
        self.configs, self.none, self.slopes = configs, none, slopes
        self.kind = {"JOIN": join, "SCAN": scan, "TOTAL": total, "NONE": none}

    def forward(self, out: Tensor, x: Lines) -> None:
        self._scan(out, x, back=False)

    def backward(self, out: Tensor, grad: Lines, x: Lines) -> None:
        if self.slopes is None:
            return self._scan(out, grad, back=True)
        until = torch.empty(out.shape, dtype=torch.float64, device=out.device)
        self._scan(until, x, back=False)
        settings = self.configs.pick("flow", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
        outer, lines, outer_stride, line_stride = _as_tiles(x)
        _, _, grad_outer, grad_line = _as_tiles(grad)
        taken, block = _tile(x, lines, settings.pop("TILE"), settings.pop("COLUMNS"))
        blocks, (along, across) = triton.cdiv(lines, taken), self.slopes
        FLOW.at(LINES=taken, BLOCK=block, ALONG=along, ACROSS=across, NONE=self.none, **settings)(
            (outer * blocks, 1, 1), x.tensor, grad.tensor, until, out, lines, blocks, outer_stride, line_stride,
            x.stride, grad_outer, grad_line, grad.stride, *_written(x), x.n,
        )  # fmt: skip
        return None

    def _scan(self, out: Tensor, x: Lines, *, back: bool) -> None:
        settings = self.configs.pick("scan", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
        programs = settings.pop("PROGRAMS")
        outer, lines, outer_stride, line_stride = _as_tiles(x)
        taken, block = _tile(x, lines, settings.pop("TILE"), settings.pop("COLUMNS"))
        blocks = triton.cdiv(lines, taken)
        parts = min(triton.cdiv(programs, outer * blocks), triton.cdiv(x.n, max(PART // taken, block)))
        length = triton.cdiv(triton.cdiv(x.n, parts), block) * block
        parts = triton.cdiv(x.n, length)
        totals = torch.empty(outer * lines * parts, dtype=torch.float64, device=out.device) if parts > 1 else None
        launch = SCANNED.at(
            LINES=taken, BLOCK=block, PARTS=_power(parts), BACK=back, UNIT=x.inner == 1, **self.kind, **settings
        )
        numbers = (lines, blocks, outer_stride, line_stride, x.stride, *_written(x), x.n, parts, length)
        grid = (outer * blocks * parts, 1, 1)
        if totals is not None:
            launch(grid, x.tensor, None, totals, *numbers)
        launch(grid, x.tensor, out, totals, *numbers)


def _tile(x: Lines, lines: int, tile: int, least: int) -> tuple[int, int]:
    """How many lines a program takes, and how many elements of each at a time."""
    if x.inner == 1:
        block = min(tile, _power(x.n))
        return min(tile // block, _power(lines)), block
    taken = min(_power(lines), max(least, tile // _power(x.n)))
    return taken, min(tile // taken, _power(x.n))


def _written(x: Lines) -> tuple[int, int, int]:
    """Between blocks, lines and elements of a contiguous result."""
    return (0, x.n, 1) if x.inner == 1 else (x.n * x.inner, 1, x.inner)
