"""Reductions of [outer, n, inner] along n, of any kind: which program takes what, and in which order.

Each thread has lanes of its own, one for every element of a load of 16 bytes. It asks for several loads at once, and
for those of the next turns while they are on their way; its lanes meet them, to the end of what its program takes.
Threads speak to each other only then. A kind of reduction is device functions on tuples of one or two tensors, lanes
or states:

    LANES(shape)                            lanes that have met nothing
    MET(lanes, v, offset)                   the lanes when they have met the tile v, which lies ``offset`` further along
    REDUCED(lanes, number, first, axis)     the state of each line: lanes begin at its elements ``first`` + ``number``
    NOTHING(shape)                          states of no elements
    JOINED(before, after)                   of two states
    GATHERED(state, axis)                   of states along ``axis``, in any order
    RESULT(state)                           what is written

Where lines are too few to fill a GPU they are cut into parts, by the shape alone; a second launch, which is under way
before the first has ended, joins their states. No result depends on which program came first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelworks.build.triton import Configs, Kernel, interpreting, kernel
from kernelworks.contract.row_layout import Lines
from kernelworks.tile.row_chunks import appended

PART = 8192  # elements that a part has at least
WIDEST = 16  # bytes of a load


@kernel
def _put(out, first, second, line, lines, part, state, RESULT: tl.constexpr, inside):
    """The result of whole lines, or the state of a part of them."""
    if first is None:
        tl.store(out + line, RESULT(state), mask=inside)
    else:
        tl.store(first + part * lines + line, state[0], mask=inside)
        if second is not None:
            tl.store(second + part * lines + line, state[1], mask=inside)


@kernel
def _turn(
    lanes, at, spread, step, offset, number, inside, left,
    MET: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The lanes when they have met AHEAD tiles, all of which are asked for before the first is looked at. They begin at
    ``at``, ``step`` apart, and lie as ``spread`` says; ``left`` elements are left of the line, WHOLE: as many as that.
    """
    tiles = ()
    for i in tl.static_range(AHEAD):
        mask = inside
        if not WHOLE:
            mask = number < left - i * BLOCK
            if inside is not None:
                mask = mask & inside
        if mask is None:
            v = tl.load(at + i * step + spread, eviction_policy="evict_first")
        else:
            v = tl.load(at + i * step + spread, mask=mask, other=OTHER, eviction_policy="evict_first")
        tiles = appended(tiles, v)
    for i in tl.static_range(AHEAD):
        lanes = MET(lanes, tiles[i], offset + i * BLOCK)
    return lanes


@kernel
def _stretch(
    x, spread, stride, number, inside, first, end, shape: tl.constexpr, axis: tl.constexpr,
    LANES: tl.constexpr, MET: tl.constexpr, REDUCED: tl.constexpr, OTHER: tl.constexpr, TILES: tl.constexpr,
    BLOCK: tl.constexpr, AHEAD: tl.constexpr, ONCE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state of up to TILES tiles from ``first`` on."""
    SPAN: tl.constexpr = BLOCK * AHEAD
    count = tl.minimum(end - first, TILES * BLOCK).to(tl.int32)
    at = x + first * stride
    step = stride * BLOCK
    lanes = LANES(shape)
    if ONCE:
        lanes = _turn(lanes, at, spread, step, 0, number, inside, count, MET, OTHER, BLOCK, AHEAD, False)
    else:
        whole = count // SPAN * SPAN
        for offset in tl.range(0, whole, SPAN, num_stages=STAGES):
            lanes = _turn(lanes, at, spread, step, offset, number, inside, 0, MET, OTHER, BLOCK, AHEAD, True)
            at += step * AHEAD
        if whole < count:
            left = count - whole
            lanes = _turn(lanes, at, spread, step, whole, number, inside, left, MET, OTHER, BLOCK, AHEAD, False)
    return REDUCED(lanes, number, first, axis)


@kernel
def _walked(
    x, spread, stride, number, inside, begin, end, shape: tl.constexpr, axis: tl.constexpr, LINES: tl.constexpr,
    LANES: tl.constexpr, MET: tl.constexpr, REDUCED: tl.constexpr, NOTHING: tl.constexpr, JOINED: tl.constexpr,
    OTHER: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, ONCE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The state of the elements from ``begin`` to ``end``, which lies further on."""
    if ONCE:
        state = _stretch(
            x, spread, stride, number, inside, begin, end, shape, axis,
            LANES, MET, REDUCED, OTHER, TILES, BLOCK, AHEAD, True, STAGES,
        )  # fmt: skip
    else:
        state = NOTHING(LINES)
        for first in range(begin, end, TILES * BLOCK):
            more = _stretch(
                x, spread, stride, number, inside, first, end, shape, axis,
                LANES, MET, REDUCED, OTHER, TILES, BLOCK, AHEAD, False, STAGES,
            )  # fmt: skip
            state = JOINED(state, more)
    return state


@kernel
def _along(
    x, out, first, second, M, N, stride, parts, length,
    LANES: tl.constexpr, MET: tl.constexpr, REDUCED: tl.constexpr, NOTHING: tl.constexpr, JOINED: tl.constexpr,
    RESULT: tl.constexpr, OTHER: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    AHEAD: tl.constexpr, ONCE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Lines of unit stride."""
    if EARLY and first is not None:
        gdc_launch_dependents()
    program = tl.program_id(0).to(tl.int64)
    part = program % parts
    line = program // parts * ROWS + tl.arange(0, ROWS)
    begin = part * length
    end = tl.minimum(begin + length, N)
    number = tl.arange(0, BLOCK)[None, :]
    spread = tl.minimum(line, M - 1)[:, None] * stride + number  # behind the last line the last one
    state = _walked(
        x, spread, 1, number, None, begin, end, [ROWS, BLOCK], 1, [ROWS],
        LANES, MET, REDUCED, NOTHING, JOINED, OTHER, TILES, BLOCK, AHEAD, ONCE, STAGES,
    )  # fmt: skip
    _put(out, first, second, line, M, part, state, RESULT, line < M)


@kernel
def _down(
    x, out, first, second, N, inner, outer_stride, stride, parts, length, blocks, lines,
    LANES: tl.constexpr, MET: tl.constexpr, REDUCED: tl.constexpr, NOTHING: tl.constexpr, JOINED: tl.constexpr,
    RESULT: tl.constexpr, OTHER: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr, ONCE: tl.constexpr, STAGES: tl.constexpr, WHOLE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Lines side by side. WHOLE: ``inner`` is a multiple of COLUMNS."""
    if EARLY and first is not None:
        gdc_launch_dependents()
    program = tl.program_id(0).to(tl.int64)
    part = program // blocks % parts
    outer = program // blocks // parts
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    begin = part * length
    end = tl.minimum(begin + length, N)
    number = tl.arange(0, BLOCK)[:, None]
    spread = number.to(tl.int64) * stride + column[None, :]
    inside = None if WHOLE else (column < inner)[None, :]
    state = _walked(
        x + outer * outer_stride, spread, tl.cast(stride, tl.int64), number, inside, begin, end,
        [BLOCK, COLUMNS], 0, [COLUMNS],
        LANES, MET, REDUCED, NOTHING, JOINED, OTHER, TILES, BLOCK, AHEAD, ONCE, STAGES,
    )  # fmt: skip
    _put(out, first, second, outer * inner + column, lines, part, state, RESULT, column < inner)


@kernel
def _join(
    out, first, second, lines, parts,
    GATHERED: tl.constexpr, RESULT: tl.constexpr, NONE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The states of the parts of each line, joined. NONE is the first of a state that changes no other."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, PARTS)[:, None]
    at = part.to(tl.int64) * lines + line[None, :]
    inside = (part < parts) & (line < lines)[None, :]
    if EARLY:
        gdc_wait()
    own = tl.load(first + at, mask=inside, other=NONE)
    if second is None:
        tl.store(out + line, RESULT(GATHERED((own,), 0)), mask=line < lines)
    else:
        state = GATHERED((own, tl.load(second + at, mask=inside, other=0)), 0)
        tl.store(out + line, RESULT(state), mask=line < lines)


ALONG, DOWN, JOIN = Kernel(_along), Kernel(_down), Kernel(_join)


class LineSplit(NamedTuple):
    """What a program takes of lines: how many of them, elements of each at a time, and how often before it looks at the
    first; and into how many parts of what length lines are cut."""

    lines: int
    block: int
    ahead: int
    parts: int
    length: int

    @property
    def is_single_step(self) -> bool:
        """Whether nothing is left after the first time."""
        return self.length <= self.block * self.ahead


class Reduction:
    """Launches one kind of reduction, of the functions above. ``states`` are the dtypes of its state, ``none`` the
    first of one that changes no other, ``other`` an element that changes no lane, and ``tiles`` how many a lane may
    meet before its state moves on. The kernels' configurations are ``along`` (by N), ``down`` and ``join``."""

    def __init__(
        self, configs: Configs, *, lanes: Any, met: Any, reduced: Any, nothing: Any, joined: Any, gathered: Any,
        result: Any, states: tuple[torch.dtype, ...], none: float, other: float, tiles: int,
    ) -> None:  # fmt: skip
        self.configs, self.states, self.tiles = configs, states, tiles
        self.join = {"GATHERED": gathered, "RESULT": result, "NONE": none}
        self.kind = {
            "LANES": lanes, "MET": met, "REDUCED": reduced, "NOTHING": nothing, "JOINED": joined, "RESULT": result,
            "OTHER": other, "TILES": tiles,
        }  # fmt: skip

    def __call__(self, out: Tensor, x: Lines) -> None:
        """Writes the contiguous ``out``. There is at least one element to reduce, and a line."""
        if x.inner == 1:
            self._along(out, x)
        else:
            self._down(out, x)

    def _along(self, out: Tensor, x: Lines) -> None:
        settings = self.configs.pick("along", N=x.n, dtype=x.tensor.dtype)
        loads, programs, warps = settings.pop("LOADS"), settings.pop("PROGRAMS"), settings["num_warps"]
        cut = along(x, 32 * warps * min(WIDEST // x.tensor.itemsize, _power(x.n)), loads, programs)
        launch = ALONG.at(
            ROWS=cut.lines, BLOCK=cut.block, AHEAD=cut.ahead, ONCE=cut.is_single_step, EARLY=not interpreting(),
            **self.kind, **settings,
        )  # fmt: skip
        grid = (triton.cdiv(x.outer, cut.lines) * cut.parts, 1, 1)
        self._launched(
            out, x, cut.parts, lambda first, second: launch(
                grid, x.tensor, out, first, second, x.outer, x.n, x.outer_stride, cut.parts, cut.length
            ),
        )  # fmt: skip

    def _down(self, out: Tensor, x: Lines) -> None:
        settings = self.configs.pick("down", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
        loads, programs, warps = settings.pop("LOADS"), settings.pop("PROGRAMS"), settings["num_warps"]
        tile = 32 * warps * min(WIDEST // x.tensor.itemsize, _power(x.inner))
        cut = down(x, tile, settings.pop("COLUMNS"), loads, programs)
        launch = DOWN.at(
            BLOCK=cut.block, COLUMNS=cut.lines, AHEAD=cut.ahead, ONCE=cut.is_single_step,
            WHOLE=x.inner % cut.lines == 0, EARLY=not interpreting(), **self.kind, **settings,
        )  # fmt: skip
        blocks = triton.cdiv(x.inner, cut.lines)
        grid = (x.outer * blocks * cut.parts, 1, 1)
        self._launched(
            out, x, cut.parts, lambda first, second: launch(
                grid, x.tensor, out, first, second, x.n, x.inner, x.outer_stride, x.stride, cut.parts, cut.length,
                blocks, x.outer * x.inner,
            ),
        )  # fmt: skip

    def _launched(self, out: Tensor, x: Lines, parts: int, launch: Callable[[Any, Any], None]) -> None:
        if parts == 1:
            return launch(None, None)
        count, early = x.outer * x.inner, not interpreting()
        states = [torch.empty(count * parts, dtype=dtype, device=out.device) for dtype in self.states]
        first, second = (*states, None)[:2]
        launch(first, second)
        settings = self.configs.pick("join")
        many = _power(parts)
        rows = min(max(settings.pop("TILE") // many, 1), _power(count))
        options = {"launch_pdl": True} if early else {}
        join = JOIN.at(ROWS=rows, PARTS=many, EARLY=early, **self.join, **options, **settings)
        join((triton.cdiv(count, rows), 1, 1), out, first, second, count, parts)
        return None


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))


def along(x: Lines, tile: int, loads: int, programs: int) -> LineSplit:
    """Of lines of unit stride. ``tile`` is what a program's threads load at once, each one time; ``loads`` how often
    each may ask, along a line, or for more lines where they are short and many; ``programs`` keep a GPU busy."""
    block = min(tile, _power(x.n))
    ahead = min(loads, _power(triton.cdiv(x.n, block)))
    least = tile // block
    rows = least * (loads // ahead)
    while rows > least and triton.cdiv(x.outer, rows) < programs:
        rows //= 2
    rows = min(rows, _power(x.outer))
    return LineSplit(rows, block, ahead, *_parts(x.n, block, triton.cdiv(x.outer, rows), 1, programs))


def down(x: Lines, tile: int, least: int, loads: int, programs: int) -> LineSplit:
    """Of lines side by side, of which a program takes at least ``least``, more of short ones."""
    most = min(_power(x.inner), tile)
    least = min(least, most)
    columns = min(most, max(least, tile * loads // _power(x.n)))
    while columns > least and x.outer * triton.cdiv(x.inner, columns) < programs:
        columns //= 2
    block = min(tile // columns, _power(x.n))
    ahead = min(loads, _power(triton.cdiv(x.n, block)))
    return LineSplit(
        columns, block, ahead, *_parts(x.n, block, x.outer * triton.cdiv(x.inner, columns), columns, programs)
    )


def _parts(n: int, block: int, programs: int, width: int, wanted: int) -> tuple[int, int]:
    """How many parts lines of ``n`` are cut into, and the elements of a part, a multiple of a ``block`` of them.
    ``programs`` would do the work uncut, each on ``width`` lines; ``wanted`` are to."""
    parts = min(triton.cdiv(wanted, programs), triton.cdiv(n * width, PART))
    length = triton.cdiv(triton.cdiv(n, parts), block) * block
    return triton.cdiv(n, length), length
