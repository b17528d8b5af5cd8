"""Moves within a pass: tiles, order, vectors, copies side by side, tiles in registers, packed operands, threads,
stores."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelworks.search.schedule.nest import Access, reads
from kernelworks.search.schedule.places import Args, any_pass, find, pass_of, prune_schedule, sorted_loops
from kernelworks.search.schedule.plan import WIDTHS, Group, Illegal, Pass, Plan, Schedule, clean, with_group, with_pass
from kernelworks.search.schedule.rewrite import inner, outer


def _renamed(schedule: Schedule, dim: str, size: int) -> Schedule:
    """Every loop over a dimension as two."""

    def both(dims: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for d in dims for part in ((outer(dim), inner(dim)) if d == dim else (d,)))

    def one(part: Pass) -> Pass:
        block = {d: n for d, n in part.block.items() if d != dim}
        vector, width = part.vector, part.width
        if vector == dim:
            vector, width = (inner(dim), width) if width <= size else ("", 1)
        lanes = width if vector == inner(dim) else 1
        if dim in part.block and part.block[dim] * lanes <= size:
            block[inner(dim)] = part.block[dim]
        stream = part.stream and bool(vector)
        return replace(part, order=both(part.order), block=block, vector=vector, width=width, stream=stream)

    groups = tuple(
        replace(g, shared=both(g.shared), passes=tuple(one(p) for p in g.passes)) for g in schedule.groups
    )  # fmt: skip
    packs = tuple((stage, place, both(dims)) for stage, place, dims in schedule.pack)
    return replace(schedule, groups=groups, split=(*schedule.split, (dim, size)), pack=packs)


def tile(plan: Plan, at: str, sizes: Mapping[str, int]) -> Schedule:
    """Splits dimensions everywhere; in the pass of ``at`` all the outer loops come before all the inner ones."""
    schedule = plan.schedule
    for dim, size in sizes.items():
        schedule = _renamed(schedule, dim, int(size))
    g, p, _, part = pass_of(schedule, at)
    inside = [inner(d) for d in sizes if inner(d) in part.order]
    order = [*(d for d in part.order if d not in inside), *inside]
    gone = {d for n in part.stages for d in _reduced_after(plan, n, sizes)}
    ordered = (*(d for d in order if d not in gone), *(d for d in order if d in gone))
    return prune_schedule(plan, with_pass(schedule, g, p, replace(part, order=ordered)))


def _reduced_after(plan: Plan, name: str, sizes: Mapping[str, int]) -> list[str]:
    return [part for d in plan.kernel.stage(name).reduced for part in ((outer(d), inner(d)) if d in sizes else (d,))]


def draw_tile(plan: Plan, draw: random.Random) -> Args | None:
    group, part = any_pass(plan, draw)
    able = [d for d in (*group.shared, *part.order) if _divisors(plan.kernel.sizes[d])]
    if not able:
        return None
    chosen = draw.sample(able, min(len(able), draw.choice((1, 1, 2))))
    return {"at": part.stages[0], "sizes": {d: draw.choice(_divisors(plan.kernel.sizes[d])) for d in chosen}}


def _divisors(size: int) -> list[int]:
    return [n for n in range(4, min(size // 2, 512) + 1) if size % n == 0 and (n % 8 == 0 or n < 8)]


def reorder(plan: Plan, at: str, order: Sequence[str]) -> Schedule:
    g, p, _, part = pass_of(plan.schedule, at)
    if sorted(order) != sorted(part.order):
        raise Illegal(f"the loops of {at} are {', '.join(part.order)}")
    return prune_schedule(plan, with_pass(plan.schedule, g, p, replace(part, order=tuple(order))))


def draw_reorder(plan: Plan, draw: random.Random) -> Args | None:
    group, part = any_pass(plan, draw)
    written, gone = plan.own(group, part)
    if max(len(written), len(gone)) < 2:
        return None
    draw.shuffle(written)
    draw.shuffle(gone)
    return {"at": part.stages[0], "order": [*written, *gone]}


def vectorise(plan: Plan, at: str, dim: str, width: int) -> Schedule:
    """Lanes along a loop, which then comes last of those of its kind."""
    g, p, _, part = pass_of(plan.schedule, at)
    if dim not in part.order:
        raise Illegal(f"{at} has no loop {dim} of its own")
    order = sorted_loops(plan, part, [*(d for d in part.order if d != dim), dim])
    block = {d: n for d, n in part.block.items() if d != dim or n * width <= plan.kernel.sizes[d]}
    made = replace(part, vector=dim, width=int(width), order=order, block=block, stream=False)
    return prune_schedule(plan, with_pass(plan.schedule, g, p, _counted(plan, made)))


def draw_vectorise(plan: Plan, draw: random.Random) -> Args | None:
    _, part = any_pass(plan, draw)
    able = [(d, w) for d in part.order for w in WIDTHS if plan.kernel.sizes[d] >= w]
    if not able:
        return None
    near = [(d, w) for d, w in able if _near(plan, part, d)]
    dim, _ = draw.choice(near or able)
    widths = [w for d, w in able if d == dim]
    return {"at": part.stages[0], "dim": dim, "width": widths[-1] if draw.random() < 0.75 else draw.choice(widths)}


def _near(plan: Plan, part: Pass, dim: str) -> bool:
    """Whether what is read and written along it lies beside each other."""
    stages = [plan.kernel.stage(n) for n in part.all_stages]
    if any(dim in s.dims and s.writes.stride(dim) != 1 for s in stages):
        return False
    return all(r.stride(dim) in (0, 1) for s in stages for r in reads(s.value))


def _counted(plan: Plan, part: Pass) -> Pass:
    """With as many accumulators as its copies allow."""
    gone = {d for n in part.stages for d in plan.kernel.stage(n).reduced}
    along = math.prod(n for d, n in part.block.items() if d in gone)
    return replace(part, partials=math.gcd(part.partials, along))


def unroll(plan: Plan, at: str, dim: str, count: int, partials: int = 1) -> Schedule:
    """Copies of the statements side by side along a loop; of what is reduced with accumulators of their own."""
    g, p, _, part = pass_of(plan.schedule, at)
    if dim not in part.order:
        raise Illegal(f"{at} has no loop {dim} of its own")
    block = {d: n for d, n in part.block.items() if d != dim} | ({dim: int(count)} if count > 1 else {})
    made = _counted(plan, replace(part, block=block, partials=int(partials)))
    return prune_schedule(plan, with_pass(plan.schedule, g, p, made))


def draw_unroll(plan: Plan, draw: random.Random) -> Args | None:
    group, part = any_pass(plan, draw)
    _, gone = plan.own(group, part)
    able = [d for d in part.order if d in gone] or list(part.order)
    if not able:
        return None
    dim = part.vector if part.vector in able and draw.random() < 0.7 else draw.choice(able)
    lanes = part.width if dim == part.vector else 1
    counts = [n for n in (1, 2, 4, 8) if n * lanes <= plan.kernel.sizes[dim]]
    count = draw.choice(counts)
    return {"at": part.stages[0], "dim": dim, "count": count, "partials": count if dim in gone else 1}


def partial(plan: Plan, at: str, count: int) -> Schedule:
    """How many accumulators the copies along a reduction share out."""
    g, p, _, part = pass_of(plan.schedule, at)
    return with_pass(plan.schedule, g, p, replace(part, partials=int(count)))


def draw_partial(plan: Plan, draw: random.Random) -> Args | None:
    group, part = any_pass(plan, draw)
    _, gone = plan.own(group, part)
    along = math.prod(part.block.get(d, 1) for d in gone)
    able = [n for n in (1, 2, 4, 8) if along % n == 0 and n != part.partials]
    return {"at": part.stages[0], "count": draw.choice(able)} if gone and able else None


# ---------------------------------------------------------------- a tile in registers


def register_block(
    plan: Plan, at: str, dim: str, width: int, count: int, beside: str = "", rows: int = 1, pack: bool = False
) -> Schedule:
    """A tile of a reduction held in registers: ``count`` vectors along ``dim``, ``rows`` along ``beside``. Where
    ``pack``, an operand that does not lie along ``dim`` is copied to lie so, the tile's columns together."""
    schedule = plan.schedule
    stage = plan.kernel.stage(at)
    far = [n for n, r in enumerate(reads(stage.value)) if r.stride(dim) > 1]
    wide, name = int(width) * int(count), dim
    if pack and not far:
        raise Illegal(f"every operand of {at} lies along {dim}")
    if pack and plan.kernel.sizes[dim] % wide == 0 and plan.kernel.sizes[dim] > wide:
        schedule, name = _renamed(schedule, dim, wide), inner(dim)
    g, p, _, part = pass_of(schedule, at)
    mates = [d for d in part.order if d != name]
    made = replace(
        part, order=_tail(plan, stage.reduced, [*mates, name]), vector=name, width=int(width), partials=1, stream=False,
        block={n: c for n, c in ((name, int(count)), (beside, int(rows))) if n and c > 1},
    )  # fmt: skip
    schedule = with_pass(schedule, g, p, made)
    if pack:
        for number in far[:1]:
            schedule = _packed(plan, schedule, at, number, stage.reduced, dim, name)
    return prune_schedule(plan, schedule)


def _tail(plan: Plan, gone: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    return (*(d for d in order if d not in gone), *(d for d in order if d in gone))


def _packed(
    plan: Plan, schedule: Schedule, at: str, number: int, gone: Sequence[str], dim: str, name: str
) -> Schedule:  # fmt: skip
    read = list(reads(plan.kernel.stage(at).value))[number]
    dims = [d for d, _ in read.strides]
    before = [d for d in dims if d not in gone and d != dim]
    split = [outer(dim)] if name != dim else []
    order = (*before, *split, *(d for d in dims if d in gone), name)
    return _with_pack(schedule, at, number, read, order)


def _with_pack(schedule: Schedule, at: str, number: int, read: Access, order: tuple[str, ...]) -> Schedule:
    g, *_ = find(schedule, at)
    copy = Group((Pass((f"{at}_{read.buffer}",), order),), parallel=1)
    made = with_group(schedule, g, copy, schedule.groups[g])
    return replace(made, pack=(*made.pack, (at, number, order)))


def draw_register_block(plan: Plan, draw: random.Random) -> Args | None:
    found = []
    for group in plan.schedule.groups:
        for part in group.passes:
            written, gone = plan.own(group, part)
            if gone and written and len(part.stages) == 1:
                found.append((part, written))
    if not found:
        return None
    part, written = draw.choice(found)
    stage = plan.kernel.stage(part.stages[0])
    able = [d for d in written if stage.writes.stride(d) == 1 and plan.kernel.sizes[d] >= WIDTHS[0]]
    if not able:
        return None
    dim = able[0]
    width = max(w for w in WIDTHS if w <= plan.kernel.sizes[dim])
    count = draw.choice([n for n in (1, 2, 3, 4, 8) if n * width <= plan.kernel.sizes[dim]])
    others = [d for d in written if d != dim]
    beside = draw.choice(others) if others else ""
    rows = [n for n in (1, 2, 4, 6, 8, 12) if beside and n <= plan.kernel.sizes[beside] and n * count <= 28]
    far = any(r.stride(dim) > 1 for r in reads(stage.value))
    return {
        "at": part.stages[0], "dim": dim, "width": width, "count": count, "beside": beside,
        "rows": draw.choice(rows) if rows else 1, "pack": far and draw.random() < 0.9,
    }  # fmt: skip


def pack(plan: Plan, at: str, number: int, order: Sequence[str]) -> Schedule:
    """An operand copied to lie in another order."""
    operands = list(reads(plan.kernel.stage(at).value))
    if not 0 <= number < len(operands):
        raise Illegal(f"{at} has {len(operands)} operands, no number {number}")
    return prune_schedule(plan, _with_pack(plan.schedule, at, number, operands[number], tuple(order)))


def draw_pack(plan: Plan, draw: random.Random) -> Args | None:
    stages = [s for s in plan.kernel.stages if s.monoid]
    if not stages:
        return None
    stage = draw.choice(stages)
    operands = list(reads(stage.value))
    number = draw.randrange(len(operands)) if operands else 0
    dims = [d for d, _ in operands[number].strides] if operands else []
    if len(dims) < 2:
        return None
    draw.shuffle(dims)
    return {"at": stage.name, "number": number, "order": dims}


# ---------------------------------------------------------------- threads, stores


def parallel(plan: Plan, at: str, loops: int, grain: int = 0) -> Schedule:
    """How many outermost loops threads share, and how many iterations a thread takes at once."""
    g, _, group, _ = pass_of(plan.schedule, at)
    return with_group(plan.schedule, g, replace(group, parallel=int(loops), grain=int(grain) if loops else 0))


def draw_parallel(plan: Plan, draw: random.Random) -> Args | None:
    group, part = any_pass(plan, draw)
    able = len(group.shared) + (clean(plan.kernel, group.passes[0]) if len(group.passes) == 1 else 0)
    if not able:
        return None
    loops = draw.choice([n for n in range(min(able, 3) + 1) if n != group.parallel] or [group.parallel])
    return {"at": part.stages[0], "loops": loops, "grain": draw.choice((0, 0, 0, 1, 4, 16))}


def stream(plan: Plan, at: str, on: bool = True) -> Schedule:
    """Answers written past the caches."""
    g, p, _, part = pass_of(plan.schedule, at)
    return with_pass(plan.schedule, g, p, replace(part, stream=bool(on)))


def draw_stream(plan: Plan, draw: random.Random) -> Args | None:
    able = [p for g in plan.schedule.groups for p in g.passes if p.vector]
    part = draw.choice(able) if able else None
    return {"at": part.stages[0], "on": not part.stream} if part else None
