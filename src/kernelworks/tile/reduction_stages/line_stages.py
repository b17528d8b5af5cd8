"""Reductions of [outer, n, inner] along n in stages, as ``stage_reduction.py`` does them, for the ops of a table.

A thread asks for several loads of 16 bytes at once and for those of the next turns while they are on their way; only
the last turn of a line looks at where it ends. Terms and sums are float64; a stage or gradient that is ``narrow`` picks
elements, or counts them, and loses nothing in float32. A line that one program holds is read once for all its stages
and its gradient; longer ones, and lines side by side, are read once for each. Device functions on tuples say what is
computed:

    TERM(operand, found, n, number)       a term: of the operands' elements, the stages before, and the numbers
    FINISH(s, found, n, number)           what the stage's terms come to
    COEFFICIENT(grad, found, n, number)   a gradient's number of each line
    ELEMENT(operand, found, n, coefficient, number)   the gradients of an element, a tuple
"""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelworks.build.triton import Kernel, kernel
from kernelworks.tile.row_chunks import appended


@kernel
def _combined(chain, term, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        made = chain + term
    elif COMBINE == "max":
        made = tl.maximum(chain, term, propagate_nan=tl.PropagateNan.ALL)
    else:
        made = tl.minimum(chain, term, propagate_nan=tl.PropagateNan.ALL)
    return made


@kernel
def _gathered(chain, COMBINE: tl.constexpr, AXIS: tl.constexpr, COUNTS: tl.constexpr = False):
    """What all lanes come to, in float64; a largest is found in the lanes' own type, and a NaN aside. COUNTS: they
    come to fewer than 2^24."""
    if COUNTS:
        made = tl.sum(chain, AXIS).to(tl.float64)
    elif COMBINE == "sum":
        made = tl.sum(chain.to(tl.float64), AXIS)
    else:
        if COMBINE == "max":
            most = tl.max(chain, AXIS)
        else:
            most = tl.min(chain, AXIS)
        strange = tl.max((chain != chain).to(tl.int32), AXIS)
        made = tl.where(strange > 0, float("nan"), most).to(tl.float64)
    return made


@kernel
def _cast(v, NARROW: tl.constexpr):
    if NARROW:
        made = tl.cast(v, tl.float32)
    else:
        made = tl.cast(v, tl.float64)
    return made


@kernel
def _cast_all(values, first: tl.constexpr, COUNT: tl.constexpr, NARROW: tl.constexpr):
    made = ()
    for k in tl.static_range(COUNT):
        made = appended(made, _cast(values[first + k], NARROW))
    return made


@kernel
def _beside(values, COUNT: tl.constexpr, AXIS: tl.constexpr, NARROW: tl.constexpr):
    """Numbers of lines, beside the elements of a tile of which AXIS runs along lines."""
    made = ()
    for k in tl.static_range(COUNT):
        made = appended(made, _cast(tl.expand_dims(values[k], AXIS), NARROW))
    return made


@kernel
def _numbers(first, second, NARROW: tl.constexpr):
    made = ()
    if first is not None:
        made = appended(made, _cast(first, NARROW))
    if second is not None:
        made = appended(made, _cast(second, NARROW))
    return made


@kernel
def _found(found, line, lines, inside, COUNT: tl.constexpr):
    """What the first COUNT stages came to, of some lines."""
    made = ()
    for s in tl.static_range(COUNT):
        made = appended(made, tl.load(found + s * lines + line, mask=inside, other=0.0))
    return made


@kernel
def _tile(x, base, spread, mask, ONCE: tl.constexpr):
    """Elements; ONCE: no one asks for them again."""
    EVICT: tl.constexpr = "evict_first" if ONCE else ""
    if mask is None:
        v = tl.load(x + base + spread, eviction_policy=EVICT)
    else:
        v = tl.load(x + base + spread, mask=mask, other=0.0, eviction_policy=EVICT)
    return v


@kernel
def _tiles(tiles, x, y, z, w, base, spread, mask, ONCE: tl.constexpr):
    """The tuple with a tile of each operand more."""
    tiles = appended(tiles, _tile(x, base, spread, mask, ONCE))
    if y is not None:
        tiles = appended(tiles, _tile(y, base, spread, mask, ONCE))
    if z is not None:
        tiles = appended(tiles, _tile(z, base, spread, mask, ONCE))
    if w is not None:
        tiles = appended(tiles, _tile(w, base, spread, mask, ONCE))
    return tiles


@kernel
def _turn(
    chain, x, y, z, w, base, step, spread, number, inside, left, found, count, numbers,
    TERM: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, OPERANDS: tl.constexpr, NARROW: tl.constexpr,
    BLOCK: tl.constexpr, AHEAD: tl.constexpr, WHOLE: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """The lanes when they have met AHEAD tiles, ``step`` apart, all of which are asked for before the first is looked
    at. ``left`` elements are left of the line, WHOLE: as many as that."""
    tiles = ()
    for i in tl.static_range(AHEAD):
        mask = inside
        if not WHOLE:
            mask = number < left - i * BLOCK
            if inside is not None:
                mask = mask & inside
        tiles = _tiles(tiles, x, y, z, w, base + i * step, spread, mask, ONCE)
    for i in tl.static_range(AHEAD):
        term = TERM(_cast_all(tiles, i * OPERANDS, OPERANDS, NARROW), found, count, numbers)
        if not WHOLE:
            term = tl.where(number < left - i * BLOCK, term, START)
        chain = _combined(chain, term, COMBINE)
    return chain


@kernel
def _sweep(
    x, y, z, w, out, found, partial, first, second, n, lines, blocks, all_lines, outer_stride, line_stride, stride,
    parts, length,
    TERM: tl.constexpr, FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, STAGE: tl.constexpr,
    NARROW: tl.constexpr, OPERANDS: tl.constexpr, AXIS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
    AHEAD: tl.constexpr, SINGLE: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One stage of a part of LINES lines. AXIS is the tile's that runs along them; SINGLE: a part is one turn; WHOLE:
    a program has no fewer lines."""
    if EARLY and partial is not None:
        gdc_launch_dependents()
    SPAN: tl.constexpr = BLOCK * AHEAD
    program = tl.program_id(0).to(tl.int64)
    if AXIS == 1:
        part = program % parts
        block = program // parts % blocks
    else:
        block = program % blocks
        part = program // blocks % parts
    outer = program // blocks // parts
    line = block * LINES + tl.arange(0, LINES)
    begin = part * length
    left = tl.minimum(length, n - begin).to(tl.int32)
    number = tl.expand_dims(tl.arange(0, BLOCK), 1 - AXIS)
    inside = None
    if AXIS == 1:  # behind the last line the last one
        spread = tl.minimum(line, lines - 1)[:, None] * line_stride + number
        unit = 1
        chain = tl.full([LINES, BLOCK], START, tl.float32 if NARROW else tl.float64)
    else:
        spread = number.to(tl.int64) * stride + line[None, :]
        unit = tl.cast(stride, tl.int64)
        inside = None if WHOLE else (line < lines)[None, :]
        chain = tl.full([BLOCK, LINES], START, tl.float32 if NARROW else tl.float64)
    mine = outer * lines + line
    count = tl.cast(n, tl.float64)
    before = _found(found, mine, all_lines, line < lines, STAGE)
    beside = _beside(before, STAGE, AXIS, NARROW)
    numbers = _numbers(first, second, NARROW)
    base = outer * outer_stride + begin * unit
    step = unit * BLOCK
    if SINGLE:
        chain = _turn(
            chain, x, y, z, w, base, step, spread, number, inside, left, beside, count, numbers,
            TERM, COMBINE, START, OPERANDS, NARROW, BLOCK, AHEAD, False, ONCE,
        )  # fmt: skip
    else:
        whole = left // SPAN * SPAN
        for _ in tl.range(0, whole, SPAN, num_stages=STAGES):
            chain = _turn(
                chain, x, y, z, w, base, step, spread, number, inside, 0, beside, count, numbers,
                TERM, COMBINE, START, OPERANDS, NARROW, BLOCK, AHEAD, True, ONCE,
            )  # fmt: skip
            base += step * AHEAD
        if whole < left:
            chain = _turn(
                chain, x, y, z, w, base, step, spread, number, inside, left - whole, beside, count, numbers,
                TERM, COMBINE, START, OPERANDS, NARROW, BLOCK, AHEAD, False, ONCE,
            )  # fmt: skip
    all = _gathered(chain, COMBINE, AXIS)
    if partial is not None:
        tl.store(partial + part * all_lines + mine, all, mask=line < lines)
    else:
        result = FINISH(all, before, count, _numbers(first, second, False))
        if found is not None:
            tl.store(found + STAGE * all_lines + mine, result, mask=line < lines)
        if out is not None:
            tl.store(out + mine, result.to(tl.float32), mask=line < lines)


@kernel
def _join(
    partial, out, found, first, second, n, all_lines, parts,
    FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, STAGE: tl.constexpr, LINES: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """What the parts of LINES lines come to."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    inside = line < all_lines
    part = tl.arange(0, PARTS)[:, None].to(tl.int64)
    if EARLY:
        gdc_wait()
    chain = tl.load(partial + part * all_lines + line[None, :], mask=inside[None, :] & (part < parts), other=START)
    before = _found(found, line, all_lines, inside, STAGE)
    result = FINISH(_gathered(chain, COMBINE, 0), before, tl.cast(n, tl.float64), _numbers(first, second, False))
    if found is not None:
        tl.store(found + STAGE * all_lines + line, result, mask=inside)
    if out is not None:
        tl.store(out + line, result.to(tl.float32), mask=inside)


@kernel
def _of_held(
    tile, mask, found, count, first, second,
    TERM: tl.constexpr, FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, NARROW: tl.constexpr,
    STAGE: tl.constexpr,
):  # fmt: skip
    """What the earlier stages and one more come to, of lines that a program holds."""
    beside = _beside(found, STAGE, 1, NARROW)
    term = TERM(_cast_all(tile, 0, 1, NARROW), beside, count, _numbers(first, second, NARROW))
    if mask is not None:
        term = tl.where(mask, term, START)
    all = _gathered(term, COMBINE, 1, NARROW and COMBINE == "sum")
    result = FINISH(all, found, count, _numbers(first, second, False))
    return appended(found, result)


@kernel
def _held(
    x, out, grad, to, first, second, n, lines, line_stride,
    TERM: tl.constexpr, FINISH: tl.constexpr, COMBINE: tl.constexpr, START: tl.constexpr, NARROW: tl.constexpr,
    TERM_1: tl.constexpr, FINISH_1: tl.constexpr, COMBINE_1: tl.constexpr, START_1: tl.constexpr,
    NARROW_1: tl.constexpr, STAGES: tl.constexpr, COEFFICIENT: tl.constexpr, ELEMENT: tl.constexpr,
    PICKS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """All stages of LINES lines of unit stride, which end within BLOCK elements, then the result or the gradients.
    PICKS: float32 is enough for these."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    inside = line < lines
    number = tl.arange(0, BLOCK)[None, :]
    mask = None if WHOLE else number < n
    tile = (_tile(x, 0, tl.minimum(line, lines - 1)[:, None] * line_stride + number, mask, True),)
    count = tl.cast(n, tl.float64)
    found = ()
    if STAGES > 0:
        found = _of_held(tile, mask, found, count, first, second, TERM, FINISH, COMBINE, START, NARROW, 0)
    if STAGES > 1:
        found = _of_held(tile, mask, found, count, first, second, TERM_1, FINISH_1, COMBINE_1, START_1, NARROW_1, 1)
    if to is None:
        tl.store(out + line, found[STAGES - 1].to(tl.float32), mask=inside)
    else:
        flow = tl.load(grad + line, mask=inside, other=0.0).to(tl.float64)
        coefficient = COEFFICIENT(flow, found, count, _numbers(first, second, False))
        made = ELEMENT(
            _cast_all(tile, 0, 1, PICKS), _beside(found, STAGES, 1, PICKS), count, _cast(coefficient[:, None], PICKS),
            _numbers(first, second, PICKS),
        )  # fmt: skip
        every = inside[:, None] if WHOLE else inside[:, None] & (number < n)
        value = tl.broadcast_to(made[0].to(tl.float32), [LINES, BLOCK])
        tl.store(to + line[:, None] * line_stride + number, value, mask=every)


@kernel
def _elements(
    x, y, z, w, grad, to, other, found, first, second, n, lines, blocks, tiles, all_lines, outer_stride, line_stride,
    stride,
    COEFFICIENT: tl.constexpr, ELEMENT: tl.constexpr, STAGES: tl.constexpr, PICKS: tl.constexpr,
    OPERANDS: tl.constexpr, AXIS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile, which lie as the operands do. WHOLE: all of it exists."""
    program = tl.program_id(0).to(tl.int64)
    if AXIS == 1:
        place = program % tiles * BLOCK
        block = program // tiles % blocks
    else:
        block = program % blocks
        place = program // blocks % tiles * BLOCK
    outer = program // blocks // tiles
    line = block * LINES + tl.arange(0, LINES)
    inside = line < lines
    number = tl.expand_dims(tl.arange(0, BLOCK), 1 - AXIS)
    left = n - place
    mask = None
    if AXIS == 1:
        spread = line[:, None] * line_stride + number
        base = outer * outer_stride + place
    else:
        spread = number.to(tl.int64) * stride + line[None, :]
        base = outer * outer_stride + place * stride
    if not WHOLE:
        mask = tl.expand_dims(inside, AXIS) & (number < left)
    given = _tiles((), x, y, z, w, base, spread, mask, True)
    mine = outer * lines + line
    count = tl.cast(n, tl.float64)
    before = _found(found, mine, all_lines, inside, STAGES)
    flow = tl.load(grad + mine, mask=inside, other=0.0).to(tl.float64)
    coefficient = COEFFICIENT(flow, before, count, _numbers(first, second, False))
    made = ELEMENT(
        _cast_all(given, 0, OPERANDS, PICKS), _beside(before, STAGES, AXIS, PICKS), count,
        _cast(tl.expand_dims(coefficient, AXIS), PICKS), _numbers(first, second, PICKS),
    )  # fmt: skip
    if to is not None:
        tl.store(to + base + spread, tl.broadcast_to(made[0].to(tl.float32), spread.shape), mask=mask)
    if other is not None:
        tl.store(other + base + spread, tl.broadcast_to(made[1].to(tl.float32), spread.shape), mask=mask)


SWEEP, JOIN, HELD, ELEMENTS = Kernel(_sweep), Kernel(_join), Kernel(_held), Kernel(_elements)
