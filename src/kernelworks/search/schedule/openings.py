"""How a game usually begins: the moves that a person would make first, each where it is legal, some of them left out by
chance. The search goes on from there."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kernelworks.search.schedule.moves import Step, apply
from kernelworks.search.schedule.nest import Kernel, cost, reads
from kernelworks.search.schedule.plan import WIDTHS, Group, Illegal, Pass, Plan, Schedule, make_plan, naive

__all__ = ["opening"]

CHEAP = 12  # what is computed again rather than kept
TILES = ((2, 4), (2, 6), (2, 8), (2, 12), (3, 8), (4, 4), (4, 6), (1, 12), (4, 1), (8, 1))  # vectors, rows
MOVE_CHANCE = 0.85  # chance that a move of an opening is made


class _Opening:
    def __init__(self, kernel: Kernel, draw: random.Random) -> None:
        self.kernel, self.draw = kernel, draw
        self.schedule: Schedule = naive(kernel)
        self.steps: list[Step] = []

    def plan(self) -> Plan:
        return make_plan(self.kernel, self.schedule)

    def make(self, name: str, **args: object) -> bool:
        if self.draw.random() > MOVE_CHANCE:
            return False
        try:
            self.schedule = apply(self.kernel, self.schedule, name, args)
        except Illegal:
            return False
        self.steps.append((name, dict(args)))
        return True

    # ------------------------------------------------------------ together

    def fuse_stages(self) -> None:
        for stage in self.plan().kernel.stages:
            if not stage.monoid and cost(stage.value) <= CHEAP:
                self.make("inline", stage=stage.name)
        kernel = self.plan().kernel
        for stage in kernel.stages:
            for read in () if stage.monoid else reads(stage.value):
                source = next((s for s in kernel.stages if s.name == read.buffer and s.monoid), None)
                if source is not None and {*source.dims} == {*stage.dims} and self.make(
                    "finish", at=source.name, stage=stage.name
                ):  # fmt: skip
                    break
        at = 0
        while at + 1 < len(self.schedule.groups):
            one, two = self.schedule.groups[at : at + 2]
            if not self._fused(one, two):
                at += 1

    def _fused(self, one: Group, two: Group) -> bool:
        kernel = self.plan().kernel
        stages = [kernel.stage(n) for g in (one, two) for p in g.passes for n in p.all_stages]
        common = [d for d in stages[0].dims if all(d in s.dims for s in stages)]
        if not any({*s.dims, *s.reduced} - {*common} for s in stages):
            return False  # nothing would be left to vectorise
        at = one.passes[0].stages[0]
        return bool(common) and self.make("fuse", at=at, shared=common)

    def join_passes(self) -> None:
        for group in self.schedule.groups:
            for part in group.passes[:-1]:
                self.make("join", at=part.stages[0])

    # ------------------------------------------------------------ each pass

    def _passes(self) -> Iterator[tuple[Group, Pass]]:
        for group in self.schedule.groups:
            for part in group.passes:
                yield group, part

    def vectors(self) -> None:
        for name in [part.stages[0] for _, part in self._passes()]:
            plan = self.plan()  # anew: a tile in registers splits its dimension in every pass
            group, part = next((g, p) for g, p in self._passes() if name in p.stages)
            written, gone = plan.own(group, part)
            first = plan.kernel.stage(part.stages[0])
            if gone and written and len(part.stages) == 1 and self._tiled(plan, part, written, gone):
                continue
            able = [d for d in (*gone, *written) if plan.kernel.sizes[d] >= WIDTHS[0] and _beside(plan, part, d)]
            for dim in able[::-1] if not gone else able:
                width = max(w for w in WIDTHS if w <= plan.kernel.sizes[dim])
                if self.make("vectorise", at=first.name, dim=dim, width=width):
                    self._unrolled(first.name, dim, width, summed=dim in gone)
                    break

    def _unrolled(self, at: str, dim: str, width: int, *, summed: bool) -> None:
        size = self.plan().kernel.sizes[dim]
        counts = [n for n in (2, 4, 8) if n * width <= size]
        if counts:
            count = self.draw.choice(counts)
            self.make("unroll", at=at, dim=dim, count=count, partials=count if summed else 1)

    def _tiled(self, plan: Plan, part: Pass, written: list[str], gone: list[str]) -> bool:
        """Vectors along what is written: of a product always, of another sum where that is what lies side by side."""
        stage = plan.kernel.stage(part.stages[0])
        operands = list(reads(stage.value))
        along = [d for d in written if stage.writes.stride(d) == 1 and plan.kernel.sizes[d] >= WIDTHS[0]]
        product = len(operands) > 1 and len({frozenset(d for d, _ in r.strides) for r in operands}) > 1
        if not along or not (product or all(r.stride(along[0]) in (0, 1) for r in operands)):
            return False
        dim = along[0]
        width = max(w for w in WIDTHS if w <= plan.kernel.sizes[dim])
        vectors, rows = self.draw.choice(TILES)
        vectors = max(n for n in (1, 2, 3, 4, 8) if n <= vectors and n * width <= plan.kernel.sizes[dim])
        others = [d for d in written if d != dim and all(r.stride(d) != r.stride(dim) for r in operands)]
        beside = others[-1] if others and product else ""
        rows = min(rows, plan.kernel.sizes[beside]) if beside else 1
        far = any(r.stride(dim) > 1 for r in operands)
        return self.make(
            "register_block", at=stage.name, dim=dim, width=width, count=vectors, beside=beside, rows=rows, pack=far
        )

    def threads(self) -> None:
        for group in list(self.schedule.groups):
            self.make("parallel", at=group.passes[0].stages[0], loops=1)


def _beside(plan: Plan, part: Pass, dim: str) -> bool:
    stages = [plan.kernel.stage(n) for n in part.all_stages]
    return all(r.stride(dim) in (0, 1) for s in stages for r in reads(s.value))


def opening(kernel: Kernel, draw: random.Random) -> tuple[Schedule, list[Step]]:
    """A schedule and the moves that made it from the plain one."""
    game = _Opening(kernel, draw)
    game.fuse_stages()
    game.join_passes()
    game.vectors()
    game.threads()
    return game.schedule, game.steps
