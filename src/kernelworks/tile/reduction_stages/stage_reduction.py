"""Reductions of [outer, n, inner] along n in stages, for the ops of a table: what ``simd/stage_reduction.hpp`` does.

A stage is one launch: a program takes a tile of LINES lines and BLOCK elements of each, in float64, and then the next
tile of the same lines. Where lines are too few to fill a GPU they are cut into parts, by the shape alone, and a second
launch joins them. Device functions on tuples say what is computed:

    TERM(operand, found, n, number)       a term: of the operands' elements, the stages before, and the numbers
    FINISH(s, found, n, number)           what the stage's terms come to
    COEFFICIENT(grad, found, n, number)   a gradient's number of each line
    ELEMENT(operand, found, n, coefficient, number)   the gradients of an element, a tuple
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, kernel
from kernelworks.contract.row_layout import Lines

PART = 8192  # elements that a part has at least
MOST_OPERANDS, MOST_NUMBERS, MOST_RESULTS = 4, 2, 2
STARTS = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
LOG2_E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


# ---------------------------------------------------------------- what an expression may call


@kernel
def exponential(x):
    """e^x of a double within 2^-22 of it: the exponent in float64, 2^r for |r| <= 1/2 by the machine in float32."""
    d = tl.minimum(x, 709.0, propagate_nan=tl.PropagateNan.ALL)
    t = tl.maximum(d, -708.0, propagate_nan=tl.PropagateNan.ALL) * LOG2_E
    n = tl.floor(t + 0.5)
    power = ((n.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    made = tl.exp2((t - n).to(tl.float32)).to(tl.float64) * power
    return tl.where(x < -708.0, 0.0, tl.where(x > 709.0, float("inf"), made))


@kernel
def logarithm(x):
    """log x = e ln 2 + 2 atanh(z): x = 2^e m with m from sqrt(1/2) to sqrt(2), z = (m - 1) / (m + 1), to z^13."""
    bits = x.to(tl.int64, bitcast=True)
    power = ((bits - 0x3FE6A09E667F3BCD + (1023 << 52)) >> 52) - 1023
    m = (bits - (power << 52)).to(tl.float64, bitcast=True)
    z = (m - 1.0) / (m + 1.0)
    zz = z * z
    q = zz * (1.0 / 13.0) + 1.0 / 11.0
    q = q * zz + 1.0 / 9.0
    q = q * zz + 1.0 / 7.0
    q = q * zz + 1.0 / 5.0
    q = q * zz + 1.0 / 3.0
    y = power.to(tl.float64) * LN2 + 2.0 * z * (q * zz + 1.0)
    nothing = tl.where(x == 0.0, float("-inf"), float("nan"))
    return tl.where(x > 0.0, tl.where(x == float("inf"), x, y), nothing)


@kernel
def root(x):
    return tl.sqrt(x)


@kernel
def log_one_more(e):
    """log(1 + e) for 0 <= e <= 1: 2 atanh(z) with z = e / (2 + e)."""
    z = e / (2.0 + e)
    zz = z * z
    q = zz * (1.0 / 19.0) + 1.0 / 17.0
    q = q * zz + 1.0 / 15.0
    q = q * zz + 1.0 / 13.0
    q = q * zz + 1.0 / 11.0
    q = q * zz + 1.0 / 9.0
    q = q * zz + 1.0 / 7.0
    q = q * zz + 1.0 / 5.0
    q = q * zz + 1.0 / 3.0
    return 2.0 * z * (q * zz + 1.0)


@kernel
def _added(a, b):
    return a + b


@kernel
def _larger(a, b):
    return tl.where((b > a) | (b != b), b, a)


@kernel
def _smaller(a, b):
    return tl.where((b < a) | (b != b), b, a)


@kernel
def _combined(chain, term, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        made = _added(chain, term)
    elif COMBINE == "max":
        made = _larger(chain, term)
    else:
        made = _smaller(chain, term)
    return made


@kernel
def _gathered(chain, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        made = tl.reduce(chain, 1, _added)
    elif COMBINE == "max":
        made = tl.reduce(chain, 1, _larger)
    else:
        made = tl.reduce(chain, 1, _smaller)
    return made


# ---------------------------------------------------------------- kernels


@kernel
def _found(found, line, lines, inside, COUNT: tl.constexpr):
    """What the first COUNT stages came to, of some lines."""
    made = ()
    for s in tl.static_range(COUNT):
        made = made + (tl.load(found + s * lines + line, mask=inside, other=0.0),)  # noqa: RUF005
    return made


@kernel
def _operands(x, y, z, w, at, mask):
    made = (tl.load(x + at, mask=mask, other=0.0).to(tl.float64),)
    if y is not None:
        made = made + (tl.load(y + at, mask=mask, other=0.0).to(tl.float64),)  # noqa: RUF005
    if z is not None:
        made = made + (tl.load(z + at, mask=mask, other=0.0).to(tl.float64),)  # noqa: RUF005
    if w is not None:
        made = made + (tl.load(w + at, mask=mask, other=0.0).to(tl.float64),)  # noqa: RUF005
    return made


@kernel
def _numbers(first, second):
    made = ()
    if first is not None:
        made = made + (tl.cast(first, tl.float64),)  # noqa: RUF005
    if second is not None:
        made = made + (tl.cast(second, tl.float64),)  # noqa: RUF005
    return made


@kernel
def _stage(
    x, y, z, w, out, found, partial, first, second, n, lines, blocks, all_lines, outer_stride, line_stride, stride,
    parts, length,
    TERM: tl.constexpr, FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, STAGE: tl.constexpr,
    LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One stage of a part of LINES lines."""
    program = tl.program_id(0).to(tl.int64)
    part = program % parts
    block = program // parts % blocks
    outer = program // parts // blocks
    line = block * LINES + tl.arange(0, LINES)
    inside = line < lines
    mine = outer * lines + line
    number = tl.arange(0, BLOCK)[None, :].to(tl.int64)
    at = outer * outer_stride + line[:, None] * line_stride
    begin = part * length
    end = tl.minimum(begin + length, n)
    numbers = _numbers(first, second)
    count = tl.cast(n, tl.float64)
    before = _found(found, mine, all_lines, inside, STAGE)
    wide = ()
    for s in tl.static_range(STAGE):
        wide = wide + (before[s][:, None],)  # noqa: RUF005
    chain = tl.full([LINES, BLOCK], START, tl.float64)
    for start in range(begin, end, BLOCK):
        place = start + number
        mask = inside[:, None] & (place < end)
        term = TERM(_operands(x, y, z, w, at + place * stride, mask), wide, count, numbers)
        chain = _combined(chain, tl.where(mask, term, START), COMBINE)
    all = _gathered(chain, COMBINE)
    if partial is not None:
        tl.store(partial + part * all_lines + mine, all, mask=inside)
    else:
        result = FINISH(all, before, count, numbers)
        if found is not None:
            tl.store(found + STAGE * all_lines + mine, result, mask=inside)
        if out is not None:
            tl.store(out + mine, result.to(tl.float32), mask=inside)


@kernel
def _join(
    partial, out, found, first, second, n, all_lines, parts,
    FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, STAGE: tl.constexpr, LINES: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """What the parts of LINES lines come to."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    inside = line < all_lines
    part = tl.arange(0, PARTS)[None, :].to(tl.int64)
    mask = inside[:, None] & (part < parts)
    chain = tl.load(partial + part * all_lines + line[:, None], mask=mask, other=START)
    all = _gathered(chain, COMBINE)
    before = _found(found, line, all_lines, inside, STAGE)
    result = FINISH(all, before, tl.cast(n, tl.float64), _numbers(first, second))
    if found is not None:
        tl.store(found + STAGE * all_lines + line, result, mask=inside)
    if out is not None:
        tl.store(out + line, result.to(tl.float32), mask=inside)


@kernel
def _elements(
    x, y, z, w, grad, to, other, found, first, second, n, lines, blocks, tiles, all_lines, outer_stride, line_stride,
    stride,
    COEFFICIENT: tl.constexpr, ELEMENT: tl.constexpr, STAGES: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile, which lie as the operands do."""
    program = tl.program_id(0).to(tl.int64)
    tile = program % tiles
    block = program // tiles % blocks
    outer = program // tiles // blocks
    line = block * LINES + tl.arange(0, LINES)
    inside = line < lines
    mine = outer * lines + line
    place = tile * BLOCK + tl.arange(0, BLOCK)[None, :].to(tl.int64)
    mask = inside[:, None] & (place < n)
    at = outer * outer_stride + line[:, None] * line_stride + place * stride
    numbers = _numbers(first, second)
    count = tl.cast(n, tl.float64)
    before = _found(found, mine, all_lines, inside, STAGES)
    wide = ()
    for s in tl.static_range(STAGES):
        wide = wide + (before[s][:, None],)  # noqa: RUF005
    flow = tl.load(grad + mine, mask=inside, other=0.0).to(tl.float64)
    coefficient = COEFFICIENT(flow, before, count, numbers)[:, None]
    made = ELEMENT(_operands(x, y, z, w, at, mask), wide, count, coefficient, numbers)
    if to is not None:
        tl.store(to + at, (made[0] + tl.zeros([LINES, BLOCK], tl.float64)).to(tl.float32), mask=mask)
    if other is not None:
        tl.store(other + at, (made[1] + tl.zeros([LINES, BLOCK], tl.float64)).to(tl.float32), mask=mask)


STAGE, JOIN, ELEMENTS = Kernel(_stage), Kernel(_join), Kernel(_elements)


# ---------------------------------------------------------------- launches


class Stages(NamedTuple):
    """One pass of a variant: (term, combine, finish) of each stage; of a backward also COEFFICIENT and ELEMENT."""

    stages: tuple[tuple[Any, str, Any], ...]
    coefficient: Any = None
    element: Any = None


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))


class _Tiles(NamedTuple):
    """Lines as tiles: of unit stride all are one block of them."""

    outer: int
    lines: int
    outer_stride: int
    line_stride: int
    taken: int
    block: int

    @property
    def blocks(self) -> int:
        return int(triton.cdiv(self.lines, self.taken))


def _tiles(x: Lines, tile: int, least: int) -> _Tiles:
    if x.inner == 1:
        block = min(tile, _power(x.n))
        return _Tiles(1, x.outer, 0, x.outer_stride, min(tile // block, _power(x.outer)), block)
    taken = min(_power(x.inner), max(least, tile // _power(x.n)))
    return _Tiles(x.outer, x.inner, x.outer_stride, 1, taken, min(tile // taken, _power(x.n)))


def _padded(values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return (*values, *(None,) * (count - len(values)))


def reduce_stages(
    configs: Configs, said: Stages, operands: tuple[Tensor, ...], x: Lines, numbers: tuple[Any, ...],
    out: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """Runs the stages and writes the last to ``out``; returns what all came to, where more than ``out`` asks for it.
    ``x`` says where the lines of every operand lie."""
    settings = configs.pick("stage", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
    programs = settings.pop("PROGRAMS")
    t = _tiles(x, settings.pop("TILE"), settings.pop("COLUMNS"))
    count = t.outer * t.lines
    wanted = triton.cdiv(programs, t.outer * t.blocks)
    parts = min(wanted, triton.cdiv(x.n, max(PART // t.taken, t.block)))
    length = triton.cdiv(triton.cdiv(x.n, parts), t.block) * t.block
    parts = triton.cdiv(x.n, length)
    device, last = out.device if out is not None else x.tensor.device, len(said.stages) - 1
    keeps = last > 0 or out is None
    found = torch.empty((last + 1, count), dtype=torch.float64, device=device) if keeps else None
    partial = torch.empty((parts, count), dtype=torch.float64, device=device) if parts > 1 else None
    given, told = _padded(operands, MOST_OPERANDS), _padded(numbers, MOST_NUMBERS)
    for i, (term, combine, finish) in enumerate(said.stages):
        kind = {"FINISH": finish, "COMBINE": combine, "START": STARTS[combine], "STAGE": i}
        to = out if i == last else None
        STAGE.at(TERM=term, LINES=t.taken, BLOCK=t.block, **kind, **settings)(
            (t.outer * t.blocks * parts, 1, 1), *given, to, found, partial, *told, x.n, t.lines, t.blocks, count,
            t.outer_stride, t.line_stride, x.stride, parts, length,
        )  # fmt: skip
        if partial is not None:
            many = _power(parts)
            taken = max(1, min(1024 // many, _power(count)))
            JOIN.at(LINES=taken, PARTS=many, **kind, num_warps=4)(
                (triton.cdiv(count, taken), 1, 1), partial, to, found, *told, x.n, count, parts
            )
    return found


def write_gradients(
    configs: Configs, said: Stages, operands: tuple[Tensor, ...], x: Lines, numbers: tuple[Any, ...], grad: Tensor,
    found: Tensor | None, made: tuple[Tensor | None, ...],
) -> None:  # fmt: skip
    """Writes the gradients of each element into tensors that lie as the operands do."""
    settings = configs.pick("elements", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
    t = _tiles(x, settings.pop("TILE"), settings.pop("COLUMNS"))
    tiles = triton.cdiv(x.n, t.block)
    ELEMENTS.at(
        COEFFICIENT=said.coefficient, ELEMENT=said.element, STAGES=len(said.stages), LINES=t.taken, BLOCK=t.block,
        **settings,
    )(
        (t.outer * t.blocks * tiles, 1, 1), *_padded(operands, MOST_OPERANDS), grad, *_padded(made, MOST_RESULTS),
        found, *_padded(numbers, MOST_NUMBERS), x.n, t.lines, t.blocks, tiles, t.outer * t.lines,
        t.outer_stride, t.line_stride, x.stride,
    )  # fmt: skip
