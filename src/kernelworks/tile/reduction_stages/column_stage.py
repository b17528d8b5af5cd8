"""One stage of lines side by side, a thread each: it goes down columns of its own, so that a warp reads neighbours in a
row however long rows are.

The kernel of tiles (``line_stages.py``) loads 16 bytes a thread. Where rows begin at no multiple of 16 bytes those are
loads of single elements that lie apart. Here they are of one element (of two where elements are of 16 bits), AHEAD rows
of them under way at once; threads never meet. Columns that are too few to fill a GPU are cut into parts, which a second
launch joins. Terms and sums are as there, and so is what an op's functions say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, kernel
from kernelworks.contract.reduced_dims import reduced_lines, reduced_shape
from kernelworks.contract.row_layout import Lines
from kernelworks.tile.reduction_stages.line_launches import STARTS, LineStage
from kernelworks.tile.reduction_stages.line_stages import JOIN, _cast, _combined
from kernelworks.tile.row_chunks import appended

SHORTEST = 64  # rows of a part: less is more work to join than to read
STATES = 1024  # of parts, that a program joins


@kernel
def _columns(
    x, out, partial, n, inner, outer_stride, stride, parts, length, blocks, lines,
    TERM: tl.constexpr, FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, NARROW: tl.constexpr,
    COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    part = program // blocks % parts
    outer = program // blocks // parts
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    there = column < inner
    begin = part * length
    count = (tl.minimum(begin + length, n) - begin).to(tl.int32)
    step = tl.cast(stride, tl.int64)
    at = x + outer * outer_stride + begin * step + column
    amount = tl.cast(n, tl.float64)
    chain = tl.full([COLUMNS], START, tl.float32 if NARROW else tl.float64)
    whole = count // AHEAD * AHEAD
    for _ in tl.range(0, whole, AHEAD):
        rows = ()
        for k in tl.static_range(AHEAD):
            rows = appended(rows, tl.load(at + k * step, mask=there, other=0.0, eviction_policy="evict_first"))
        for k in tl.static_range(AHEAD):
            chain = _combined(chain, TERM((_cast(rows[k], NARROW),), (), amount, ()), COMBINE)
        at += step * AHEAD
    for _ in tl.range(whole, count):
        row = tl.load(at, mask=there, other=0.0)
        chain = _combined(chain, TERM((_cast(row, NARROW),), (), amount, ()), COMBINE)
        at += step
    mine = outer * inner + column
    state = chain.to(tl.float64)
    if partial is None:
        tl.store(out + mine, FINISH(state, (), amount, ()).to(tl.float32), mask=there)
    else:
        tl.store(partial + part * lines + mine, state, mask=there)


COLUMNS = Kernel(_columns)


def reduce_columns(configs: Configs, stage: LineStage, x: Lines, out: Tensor) -> None:
    """Writes what the stage comes to, with the configuration ``columns`` of the kernel ``triton_columns``."""
    settings = configs.pick("columns", op_kernel="triton_columns", dtype=x.tensor.dtype)
    programs = settings.pop("PROGRAMS")
    taken = min(settings.pop("COLUMNS"), triton.next_power_of_2(x.inner))
    blocks, count = triton.cdiv(x.inner, taken), x.outer * x.inner
    parts = max(1, min(triton.cdiv(programs, x.outer * blocks), x.n // SHORTEST))
    length = triton.cdiv(x.n, parts)
    parts = triton.cdiv(x.n, length)
    partial = torch.empty((parts, count), dtype=torch.float64, device=out.device) if parts > 1 else None
    kind = {"FINISH": stage.finish, "COMBINE": stage.combine, "START": STARTS[stage.combine]}
    COLUMNS.at(TERM=stage.term, NARROW=stage.narrow, COLUMNS=taken, **kind, **settings)(
        (x.outer * blocks * parts, 1, 1), x.tensor, out, partial, x.n, x.inner, x.outer_stride, x.stride, parts, length,
        blocks, count,
    )  # fmt: skip
    if partial is not None:
        many = triton.next_power_of_2(parts)
        joined = max(1, min(STATES // many, triton.next_power_of_2(count)))
        JOIN.at(LINES=joined, PARTS=many, EARLY=False, STAGE=0, num_warps=4, **kind)(
            (triton.cdiv(count, joined), 1, 1), partial, out, None, None, None, x.n, count, parts
        )


def column_function(configs: Configs, stage: LineStage, empty: float) -> Callable[..., Tensor]:
    """An op's ``forward(x, dim, keepdim)`` by its one stage; ``empty`` is the result of lines without elements."""

    def forward(x: Tensor, dim: Any, keepdim: bool, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(reduced_shape(tuple(x.shape), dim, keepdim), dtype=x.dtype, device=x.device)
        if not x.numel():
            return out.fill_(empty)
        reduce_columns(configs, stage, reduced_lines(x, dim), out)
        return out

    return forward
