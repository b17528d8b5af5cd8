"""Moves between passes: together in common loops, as one pass, apart, computed where they are read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from kernelworks.search.schedule.nest import reads
from kernelworks.search.schedule.places import Args, find, pass_of, prune_schedule
from kernelworks.search.schedule.plan import Group, Illegal, Pass, Plan, Schedule, with_group, with_pass


def fuse(plan: Plan, at: str, shared: Sequence[str]) -> Schedule:
    """The group of ``at`` and the next one inside common loops."""
    g, _ = find(plan.schedule, at)
    if g + 1 >= len(plan.schedule.groups):
        raise Illegal(f"nothing comes after {at}")
    pair = plan.schedule.groups[g : g + 2]
    passes = tuple(_inside(p, one.shared, shared) for one in pair for p in one.passes)
    made = Group(passes, tuple(shared), min(len(shared), max(1, pair[0].parallel)))
    schedule = replace(
        plan.schedule, groups=(*plan.schedule.groups[:g], made, *plan.schedule.groups[g + 2 :])
    )  # fmt: skip
    return prune_schedule(plan, schedule)


def _inside(part: Pass, before: Sequence[str], shared: Sequence[str]) -> Pass:
    """A pass with other loops around it."""
    order = (*(d for d in before if d not in shared), *(d for d in part.order if d not in shared))
    block = {d: n for d, n in part.block.items() if d not in shared}
    if part.vector in shared:
        return replace(part, order=order, block=block, vector="", width=1, stream=False)
    return replace(part, order=order, block=block)


def draw_fuse(plan: Plan, draw: random.Random) -> Args | None:
    if len(plan.schedule.groups) < 2:
        return None
    g = draw.randrange(len(plan.schedule.groups) - 1)
    pair = plan.schedule.groups[g : g + 2]
    names = [n for one in pair for p in one.passes for n in p.all_stages]
    first = plan.kernel.stage(names[0])
    able = [d for d in first.dims if all(d in plan.kernel.stage(n).dims for n in names)]
    if not able:
        return None
    count = len(able) if draw.random() < 0.4 else draw.randint(1, len(able))
    return {"at": pair[0].passes[0].stages[0], "shared": able[:count]}


def part_ways(plan: Plan, at: str) -> Schedule:
    """The passes of a group from ``at`` on in loops of their own."""
    g, p, group, _ = pass_of(plan.schedule, at)
    if p == 0:
        raise Illegal(f"{at} is the first of its group")
    first, second = replace(group, passes=group.passes[:p]), replace(group, passes=group.passes[p:])
    return prune_schedule(plan, with_group(plan.schedule, g, first, second))


def draw_part_ways(plan: Plan, draw: random.Random) -> Args | None:
    able = [g for g in plan.schedule.groups if len(g.passes) > 1]
    return {"at": draw.choice(draw.choice(able).passes[1:]).stages[0]} if able else None


def join(plan: Plan, at: str) -> Schedule:
    """The pass of ``at`` and the next one as one pass: what one computes the other finds in registers."""
    g, p, group, part = pass_of(plan.schedule, at)
    if p + 1 >= len(group.passes):
        raise Illegal(f"no pass comes after {at} in its group")
    other = group.passes[p + 1]
    best = part if part.vector else replace(other, stream=False)
    made = replace(best, stages=(*part.stages, *other.stages), after=(*part.after, *other.after), stream=False)
    passes = (*group.passes[:p], made, *group.passes[p + 2 :])
    return prune_schedule(plan, with_group(plan.schedule, g, replace(group, passes=passes)))


def draw_join(plan: Plan, draw: random.Random) -> Args | None:
    able = [
        a.stages[0] for g in plan.schedule.groups for a, b in zip(g.passes, g.passes[1:], strict=False)
        if {*a.order} == {*b.order}
    ]  # fmt: skip
    return {"at": draw.choice(able)} if able else None


def finish(plan: Plan, at: str, stage: str) -> Schedule:
    """A stage without a reduction computed as soon as what it reads was reduced, before that leaves registers."""
    schedule = plan.schedule
    g, p, _, part = pass_of(schedule, stage)
    if part.all_stages != (stage,):
        raise Illegal(f"{stage} is not alone in its pass")
    schedule = with_pass(schedule, g, p, replace(part, stages=()))
    g, p, _, part = pass_of(schedule, at)
    made = with_pass(schedule, g, p, replace(part, after=(*part.after, stage)))
    return prune_schedule(plan, made)


def draw_finish(plan: Plan, draw: random.Random) -> Args | None:
    able = []
    for stage in plan.kernel.stages:
        if not stage.monoid:
            sources = {r.buffer for r in reads(stage.value)}
            able += [
                (s.name, stage.name) for s in plan.kernel.stages if s.name in sources and {*s.dims} == {*stage.dims}
            ]
    if not able:
        return None
    at, name = draw.choice(able)
    return {"at": at, "stage": name}


def inline(plan: Plan, stage: str) -> Schedule:
    """A stage computed wherever it is read."""
    schedule = plan.schedule
    g, p, _, part = pass_of(schedule, stage)
    rest = replace(
        part, stages=tuple(n for n in part.stages if n != stage), after=tuple(n for n in part.after if n != stage)
    )  # fmt: skip
    made = with_pass(schedule, g, p, rest)
    return prune_schedule(plan, replace(made, inline=(*made.inline, stage)))


def draw_inline(plan: Plan, draw: random.Random) -> Args | None:
    able = [s.name for s in plan.kernel.stages if not s.monoid and plan.kernel.buffers[s.name].kind == "between"]
    return {"stage": draw.choice(able)} if able else None


def factor(plan: Plan, at: str, kept: str) -> Schedule:
    """A reduction over several dimensions in two passes: each element of one, then over that."""
    schedule = plan.schedule
    g, p, group, part = pass_of(schedule, at)
    if part.all_stages != (at,):
        raise Illegal(f"{at} is not alone in its pass")
    gone = plan.kernel.stage(at).reduced
    whole = Pass((at,), tuple(d for d in part.order if d not in gone or d == kept))
    rest = [d for d in part.order if d in gone and d != kept]
    made = replace(part, stages=(f"{at}_part",), order=(*(d for d in part.order if d not in gone), kept, *rest))
    made = replace(made, block={d: n for d, n in part.block.items() if d != kept}, partials=1)
    first, second = (
        replace(group, passes=(*group.passes[:p], made)),
        replace(group, passes=(whole, *group.passes[p + 1 :])),
    )
    groups = (first, second) if not group.shared else (replace(group, passes=(*first.passes, *second.passes)),)
    return prune_schedule(plan, replace(with_group(schedule, g, *groups), factor=(*schedule.factor, (at, kept))))


def draw_factor(plan: Plan, draw: random.Random) -> Args | None:
    able = [(s.name, d) for s in plan.kernel.stages if len(s.reduced) > 1 for d in s.reduced]
    at, kept = draw.choice(able) if able else ("", "")
    return {"at": at, "kept": kept} if able else None
