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
    LINES: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A part of LINES lines: scanned, or with no ``out`` its total."""
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
    for tile in range(0, tiles):
        first = begin + (tiles - 1 - tile if BACK else tile) * BLOCK
        place = first + number
        mask = inside & (place < end)
        v = tl.load(at + place * stride, mask=mask, other=NONE, eviction_policy="evict_first").to(tl.float64)
        if out is not None:
            y = JOIN(carry[:, None], SCAN(v, 1, BACK))
            to = out + outer * out_outer + line * out_line + place * out_stride
            tl.store(to, y.to(tl.float32), mask=mask)
        carry = JOIN(carry, TOTAL(v, 1))
    if out is None:
        tl.store(totals + mine + part, carry, mask=(block * LINES + tl.arange(0, LINES)) < lines)


SCANNED = Kernel(_scan)


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))


def _as_tiles(x: Lines) -> tuple[int, int, int, int]:
    """Of lines of unit stride all are one block of them: how many blocks, lines in each, and their strides."""
    return (1, x.outer, 0, x.outer_stride) if x.inner == 1 else (x.outer, x.inner, x.outer_stride, 1)


class Scan:
    """Launches one kind of scan, of the functions above; ``none`` changes nothing that it is joined to."""

    def __init__(self, configs: Configs, *, join: Any, scan: Any, total: Any, none: float) -> None:
        self.configs = configs
        self.kind = {"JOIN": join, "SCAN": scan, "TOTAL": total, "NONE": none}

    def forward(self, out: Tensor, x: Lines) -> None:
        self._scan(out, x, back=False)

    def backward(self, out: Tensor, grad: Lines, x: Lines) -> None:
        self._scan(out, grad, back=True)

    def _scan(self, out: Tensor, x: Lines, *, back: bool) -> None:
        settings = self.configs.pick("scan", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
        tile, least, programs = settings.pop("TILE"), settings.pop("COLUMNS"), settings.pop("PROGRAMS")
        outer, lines, outer_stride, line_stride = _as_tiles(x)
        if x.inner == 1:
            block = min(tile, _power(x.n))
            taken = min(tile // block, _power(lines))
        else:
            taken = min(_power(lines), max(least, tile // _power(x.n)))
            block = min(tile // taken, _power(x.n))
        blocks = triton.cdiv(lines, taken)
        parts = min(triton.cdiv(programs, outer * blocks), triton.cdiv(x.n, max(PART // taken, block)))
        length = triton.cdiv(triton.cdiv(x.n, parts), block) * block
        parts = triton.cdiv(x.n, length)
        totals = torch.empty(outer * lines * parts, dtype=torch.float64, device=out.device) if parts > 1 else None
        launch = SCANNED.at(LINES=taken, BLOCK=block, PARTS=_power(parts), BACK=back, **self.kind, **settings)
        into = (0, x.n, 1) if x.inner == 1 else (x.n * x.inner, 1, x.inner)
        numbers = (lines, blocks, outer_stride, line_stride, x.stride, *into, x.n, parts, length)
        grid = (outer * blocks * parts, 1, 1)
        if totals is not None:
            launch(grid, x.tensor, None, totals, *numbers)
        launch(grid, x.tensor, out, totals, *numbers)
