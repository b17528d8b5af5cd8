"""Finding the pass of a schedule that a move is about, and putting another in its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelworks.search.schedule.plan import Group, Illegal, Pass, Plan, Schedule, clean

__all__ = ["Args", "any_pass", "find", "pass_of", "prune_schedule", "sorted_loops"]

Args = dict[str, Any]


def find(schedule: Schedule, stage: str) -> tuple[int, int]:
    for g, group in enumerate(schedule.groups):
        for p, part in enumerate(group.passes):
            if stage in part.all_stages:
                return g, p
    raise Illegal(f"no stage {stage}")


def pass_of(schedule: Schedule, stage: str) -> tuple[int, int, Group, Pass]:
    g, p = find(schedule, stage)
    return g, p, schedule.groups[g], schedule.groups[g].passes[p]


def any_pass(plan: Plan, draw: random.Random) -> tuple[Group, Pass]:
    group = draw.choice(plan.schedule.groups)
    return group, draw.choice(group.passes)


def prune_schedule(plan: Plan, schedule: Schedule) -> Schedule:
    """Without empty passes and groups, and with no more loops shared among threads than can be."""
    groups = []
    for group in schedule.groups:
        passes = tuple(p for p in group.passes if p.stages)
        if not passes:
            continue
        able = len(group.shared)
        if len(passes) == 1:
            try:
                able += clean(plan.kernel, passes[0])
            except KeyError:  # a loop or a stage that this move makes
                able += 1
        parallel = min(group.parallel, able)
        groups.append(replace(group, passes=passes, parallel=parallel, grain=group.grain if parallel else 0))
    return replace(schedule, groups=tuple(groups))


def sorted_loops(plan: Plan, part: Pass, order: Sequence[str]) -> tuple[str, ...]:
    gone = {d for n in part.stages for d in plan.kernel.stage(n).reduced}
    return (*(d for d in order if d not in gone), *(d for d in order if d in gone))
