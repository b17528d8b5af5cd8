"""A schedule: how a nest is computed, as plain data; and a plan: a schedule that was found legal for a kernel.

Nothing in a schedule changes what is computed but the order of a sum. ``make_plan`` refuses what would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernelworks.machine import machine
from kernelworks.search.schedule.nest import Access, Kernel, Stage, reads
from kernelworks.search.schedule.rewrite import Illegal, rewrite_nest

__all__ = [
    "WIDTHS",
    "Group",
    "Illegal",
    "Pass",
    "Plan",
    "Schedule",
    "clean",
    "make_plan",
    "naive",
    "with_group",
    "with_pass",
]  # fmt: skip

WIDTHS = (4, 8, 16)  # floats of a vector
STREAMING_FEATURES = {4: "avx2", 8: "avx2", 16: "avx512f"}  # what must be there to write so many past the caches
LOCAL = 1 << 16  # elements of a buffer that a thread keeps for itself: an L2 cache holds them
MOST_COPIES = 48  # of a pass's statements, side by side
MOST_BLOCK = 16


@dataclass(frozen=True)
class Pass:
    """One nest of loops that computes several stages. ``order``: its own loops, those of what is reduced last.
    ``block``: copies of the statements side by side along a dimension (unrolled, or the tile held in registers);
    ``partials``: accumulators that they share out. ``after``: stages that are computed from what was reduced."""

    stages: tuple[str, ...]
    order: tuple[str, ...]
    after: tuple[str, ...] = ()
    block: Mapping[str, int] = field(default_factory=dict)
    vector: str = ""
    width: int = 1
    partials: int = 1
    stream: bool = False

    @property
    def all_stages(self) -> tuple[str, ...]:
        return (*self.stages, *self.after)


@dataclass(frozen=True)
class Group:
    """Passes inside common loops. ``parallel``: how many of the outermost loops threads share; ``grain``: iterations
    that a thread takes at once, 0 for an even share."""

    passes: tuple[Pass, ...]
    shared: tuple[str, ...] = ()
    parallel: int = 0
    grain: int = 0


@dataclass(frozen=True)
class Schedule:
    """``split``: (dimension, size of the inner one); ``factor``: (stage, reduced dimension that is kept first);
    ``pack``: (stage, number of the operand, order of its dimensions); ``inline``: stages computed where they are
    read."""

    groups: tuple[Group, ...]
    split: tuple[tuple[str, int], ...] = ()
    factor: tuple[tuple[str, str], ...] = ()
    pack: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    inline: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "split": [list(s) for s in self.split], "factor": [list(f) for f in self.factor],
            "pack": [[stage, place, list(dims)] for stage, place, dims in self.pack], "inline": list(self.inline),
            "groups": [
                {
                    "shared": list(g.shared), "parallel": g.parallel, "grain": g.grain,
                    "passes": [
                        {
                            "stages": list(p.stages), "after": list(p.after), "order": list(p.order),
                            "block": dict(sorted(p.block.items())), "vector": p.vector, "width": p.width,
                            "partials": p.partials, "stream": p.stream,
                        } for p in g.passes
                    ],
                } for g in self.groups
            ],
        }  # fmt: skip

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Schedule:
        """Raises Illegal if it is no schedule."""
        try:
            groups = tuple(
                Group(
                    tuple(
                        Pass(
                            tuple(p["stages"]), tuple(p["order"]), tuple(p["after"]),
                            {str(d): int(n) for d, n in p["block"].items()}, str(p["vector"]), int(p["width"]),
                            int(p["partials"]), bool(p["stream"]),
                        ) for p in g["passes"]
                    ),
                    tuple(g["shared"]), int(g["parallel"]), int(g["grain"]),
                ) for g in said["groups"]
            )  # fmt: skip
            return Schedule(
                groups,
                tuple((str(d), int(n)) for d, n in said["split"]),
                tuple((str(s), str(d)) for s, d in said["factor"]),
                tuple((str(s), int(n), tuple(dims)) for s, n, dims in said["pack"]),
                tuple(said["inline"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Illegal(f"no schedule: {type(error).__name__}: {error}") from None


def naive(kernel: Kernel) -> Schedule:
    """One element after the other, each stage in loops of its own."""
    return Schedule(tuple(Group((Pass((s.name,), (*s.dims, *s.reduced)),)) for s in kernel.stages))


@dataclass(frozen=True)
class Plan:
    """``kernel`` is rewritten as the schedule says. ``kept``: for each buffer between stages that is not whole in
    memory the strides of its dimensions, there and in what is kept, and how many elements that is; 0 where its values
    never leave registers."""

    kernel: Kernel
    schedule: Schedule
    kept: Mapping[str, tuple[Mapping[int, int], int]]

    def own(self, group: Group, part: Pass) -> tuple[list[str], list[str]]:
        """The loops of a pass: over what is written, over what is reduced."""
        reduced = _reduced(self.kernel, part)
        return [d for d in part.order if d not in reduced], [d for d in part.order if d in reduced]


def _reduced(kernel: Kernel, part: Pass) -> set[str]:
    return {d for name in part.stages for d in kernel.stage(name).reduced}


def make_plan(kernel: Kernel, schedule: Schedule) -> Plan:
    """Raises Illegal with the reason where the schedule would change what the kernel computes, or cannot be printed."""
    done = rewrite_nest(kernel, schedule.split, schedule.factor, schedule.pack, schedule.inline)
    names = [name for g in schedule.groups for p in g.passes for name in p.all_stages]
    wanted = [s.name for s in done.stages]
    if sorted(names) != sorted(wanted):
        raise Illegal(f"computes {', '.join(sorted(names))}; the kernel has {', '.join(sorted(wanted))}")
    for group in schedule.groups:
        for part in group.passes:
            _check_loops(done, group, part)
            _check_vector(done, group, part)
        _check_parallel(done, group)
    _check_flow(done, schedule)
    return Plan(done, schedule, _kept(done, schedule))


def _check_loops(kernel: Kernel, group: Group, part: Pass) -> None:
    if not part.stages:
        raise Illegal("a pass without stages")
    reduced, own = _reduced(kernel, part), set(part.order)
    for name in part.stages:
        stage = kernel.stage(name)
        if missing := [d for d in group.shared if d not in stage.dims]:
            raise Illegal(f"{name} has no loop {missing[0]} to share: it is not over it, or reduces it")
        if {*stage.dims, *stage.reduced} - {*group.shared} != own:
            raise Illegal(f"{name} has other loops than {', '.join(part.order) or 'none'}")
        if stage.monoid and {*stage.reduced} != reduced:
            raise Illegal(f"{name} reduces other loops than its pass")
    for name in part.after:
        stage = kernel.stage(name)
        if not reduced or stage.monoid:
            raise Illegal(f"{name} cannot follow a pass: only a stage without a reduction can, behind one with it")
        if {*stage.dims} - {*group.shared} != own - reduced or not {*group.shared} <= {*stage.dims}:
            raise Illegal(f"{name} has other loops than what is reduced before it")
    if len(own) != len(part.order) or len({*group.shared}) != len(group.shared):
        raise Illegal("a loop stands twice")
    first = next((i for i, d in enumerate(part.order) if d in reduced), len(part.order))
    if any(d not in reduced for d in part.order[first:]):
        raise Illegal("a loop over what is written stands inside one over what is reduced")
    copies = 1
    for dim, count in part.block.items():
        lanes = part.width if dim == part.vector else 1
        if dim not in own or not 1 <= count <= MOST_BLOCK or count * lanes > kernel.sizes[dim]:
            raise Illegal(f"{count} copies along {dim}: it has {kernel.sizes.get(dim, 0)} elements in loops of its own")
        copies *= count
    if copies > MOST_COPIES:
        raise Illegal(f"{copies} copies of the statements; up to {MOST_COPIES} are printed")
    along = math.prod(n for d, n in part.block.items() if d in reduced)
    if part.partials < 1 or along % part.partials or (part.partials > 1 and not reduced):
        raise Illegal(f"{part.partials} accumulators among {along} copies of a sum's terms")


def _check_vector(kernel: Kernel, group: Group, part: Pass) -> None:
    if not part.vector:
        if part.width != 1 or part.stream:
            raise Illegal("a width, or streaming stores, without a vector")
        return
    dim, reduced = part.vector, _reduced(kernel, part)
    if dim not in part.order or part.width not in WIDTHS or part.width > kernel.sizes[dim]:
        raise Illegal(f"{part.width} lanes along {dim}, which has {kernel.sizes.get(dim, 0)} elements")
    for name in part.all_stages:
        stage = kernel.stage(name)
        if dim not in stage.dims:
            continue
        if stage.writes.stride(dim) != 1:
            raise Illegal(f"{name} does not write neighbours along {dim}")
    if not part.stream:
        return
    if STREAMING_FEATURES[part.width] not in machine().features:
        raise Illegal(
            f"streaming stores of {part.width} lanes are {STREAMING_FEATURES[part.width]}'s, which this machine has not"
        )
    written = [kernel.stage(n) for n in part.all_stages if kernel.buffers[n].kind == "output"]
    if not written or dim in reduced:
        raise Illegal("streaming stores are of answers, along what is written")
    for stage in written:
        steps = [n for d, n in stage.writes.strides if d != dim]
        if any(n % part.width for n in (*steps, stage.writes.offset)) or kernel.sizes[dim] % part.width:
            raise Illegal(f"streaming stores of {stage.name} would not be aligned")
        if kernel.readers(stage.name):
            raise Illegal(f"{stage.name} is read again")


def clean(kernel: Kernel, part: Pass) -> int:
    """How many of a pass's outermost loops have no rest: threads can share them as one."""
    reduced, count = _reduced(kernel, part), 0
    for dim in part.order:
        step = part.block.get(dim, 1) * (part.width if dim == part.vector else 1)
        if dim in reduced or kernel.sizes[dim] % step or kernel.sizes[dim] == step:
            break
        count += 1
    return count


def _check_parallel(kernel: Kernel, group: Group) -> None:
    able = len(group.shared) + (clean(kernel, group.passes[0]) if len(group.passes) == 1 else 0)
    if not 0 <= group.parallel <= able:
        raise Illegal(f"{group.parallel} loops shared among threads; {able} can be")
    if group.grain < 0 or (group.grain and not group.parallel):
        raise Illegal("a grain is of a parallel loop, 1 or more")


def _places(schedule: Schedule) -> dict[str, tuple[int, int, int]]:
    """Stage -> its group, its pass, and its place there."""
    return {
        name: (i, k, n)
        for i, g in enumerate(schedule.groups) for k, p in enumerate(g.passes) for n, name in enumerate(p.all_stages)
    }  # fmt: skip


def _check_flow(kernel: Kernel, schedule: Schedule) -> None:
    """Whatever is read was written before, by the same thread or before all threads went on."""
    at = _places(schedule)
    for stage in kernel.stages:
        group = schedule.groups[at[stage.name][0]]
        for read in reads(stage.value):
            if read.buffer not in at:
                continue
            source = kernel.stage(read.buffer)
            if at[source.name] >= at[stage.name]:
                raise Illegal(f"{stage.name} reads {source.name}, which is written after it")
            if at[source.name][0] != at[stage.name][0]:
                continue
            if at[source.name][1] != at[stage.name][1]:
                if _matched(kernel, source, stage, read, group.shared) is None:
                    raise Illegal(f"{stage.name} reads {source.name} elsewhere than where their common loops stand")
                continue
            part = group.passes[at[stage.name][1]]
            if _same_place(source, read) and (not source.monoid or stage.name in part.after):
                if stage.name in part.after and not source.monoid and source.name not in part.after:
                    raise Illegal(f"{stage.name} comes after {source.name} was overwritten in registers")
                continue
            raise Illegal(f"{stage.name} reads {source.name} of the same pass before it is all there")


def _same_place(source: Stage, read: Access) -> bool:
    return dict(read.strides) == dict(source.writes.strides) and read.offset == source.writes.offset


def _matched(
    kernel: Kernel, source: Stage, stage: Stage, read: Access, shared: tuple[str, ...]
) -> Mapping[int, int] | None:  # fmt: skip
    """Where a read stays within what one iteration of the common loops writes: the strides of the source's other
    dimensions, and what they are when nothing else is kept. None where it does not stay there."""
    if any(read.stride(d) != source.writes.stride(d) for d in shared) or kernel.buffers[source.name].zeroed:
        return None if shared else {}
    rest = {n: kernel.sizes[d] for d, n in source.writes.strides if d not in shared}
    packed, step = dict[int, int](), 1
    for dim in reversed(source.dims):
        if dim not in shared:
            packed[source.writes.stride(dim)] = step
            step *= kernel.sizes[dim]
    seen: set[int] = set()
    for dim, stride in read.strides:
        if dim in shared:
            continue
        if rest.get(stride, 0) < kernel.sizes[dim] or stride in seen:
            return None if shared else {}
        seen.add(stride)
    if read.offset != source.writes.offset:
        return None if shared else {}
    return packed


def _kept(kernel: Kernel, schedule: Schedule) -> dict[str, tuple[Mapping[int, int], int]]:
    """What lies in a thread's own memory, or in registers alone."""
    at = _places(schedule)
    found: dict[str, tuple[Mapping[int, int], int]] = {}
    for source in kernel.stages:
        buffer, readers = kernel.buffers[source.name], kernel.readers(source.name)
        if buffer.kind != "between" or buffer.zeroed or not readers:
            continue
        if any(at[r.name][0] != at[source.name][0] for r in readers):
            continue
        if all(at[r.name][1] == at[source.name][1] for r in readers):
            found[source.name] = ({}, 0)
            continue
        shared = schedule.groups[at[source.name][0]].shared
        if not shared:
            continue
        elements = math.prod(kernel.sizes[d] for d in source.dims if d not in shared)
        if elements > LOCAL:
            continue
        packed: Mapping[int, int] = {}
        for reader in readers:
            for read in reads(reader.value):
                if read.buffer == source.name:
                    packed = _matched(kernel, source, reader, read, shared) or packed
        found[source.name] = (packed, elements)
    return found


def with_group(schedule: Schedule, number: int, *groups: Group) -> Schedule:
    """Other groups in the place of one."""
    return replace(schedule, groups=(*schedule.groups[:number], *groups, *schedule.groups[number + 1 :]))


def with_pass(schedule: Schedule, number: int, place: int, *parts: Pass) -> Schedule:
    """Other passes in the place of one."""
    group = schedule.groups[number]
    passes = (*group.passes[:place], *parts, *group.passes[place + 1 :])
    return with_group(schedule, number, replace(group, passes=passes))
