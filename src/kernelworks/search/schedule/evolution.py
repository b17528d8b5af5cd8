"""The proposer: schedules that change by moves and by crossing, from a plain loop nest on.

What is quick is changed further. Which move is tried hangs on what the judge says that its parent is bound by, and on
how often the move has helped before.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from typing import Any

from kernelworks.judge.problem import Problem
from kernelworks.search.proposer import Draft, StoredCandidate
from kernelworks.search.schedule.candidate import COMPILER, candidate_of
from kernelworks.search.schedule.moves import (
    COMPUTE,
    LATENCY,
    MEMORY,
    MOVES,
    OVERHEAD,
    Step,
    apply,
    draw_args,
    replay_steps,
)
from kernelworks.search.schedule.nest import Kernel
from kernelworks.search.schedule.openings import opening
from kernelworks.search.schedule.plan import Illegal, Schedule, make_plan, naive
from kernelworks.search.schedule.trace import nest_of
from kernelworks.search.schedule.values import NotDerivable

__all__ = ["ScheduleRewriting"]

FORMATS = ("kernelbench", "kernelbook", "op")  # candidates of the last are functions
ELITE = 12  # parents
CROSSOVER_SHARE = 0.25  # of the drafts
FEW, OPENING_SHARE = 6, 0.08  # parents up to which drafts are openings, and the share that they are from then on
GUIDED_WEIGHT = 3.0  # how much likelier a move is that helps against what the parent is bound by
MOST_STEPS = 60
MOST_TEXT = 120_000  # characters of a candidate: g++ takes seconds for more
TRIES = 60  # for one draft

# The first word of what a judgement says -> what moves are for.
BOTTLENECK_KINDS = {
    "memory": MEMORY, "compute": COMPUTE, "transcendental": COMPUTE, "ridge": COMPUTE, "dispatch": OVERHEAD,
    "launch": OVERHEAD, "latency": LATENCY,
}  # fmt: skip


class ScheduleRewriting:
    """Drafts in C++ for a problem in KernelBench's format, from its graph alone.

    The first draft is the plain loop nest; ``declined`` says why there is none.
    """

    name = "schedule"

    def __init__(self, *, seed: int = 0, over: str = "eager") -> None:
        self.seed, self.over, self.asked = seed, over, 0
        self.declined, self.function = "", ""
        self.kernels: dict[str, Kernel | None] = {}
        self.proposed: set[str] = set()
        self.helped = {name: [0, 0] for name in MOVES}  # tried, quicker than the parent
        self.fitness: dict[str, float] = {}  # of candidates by their ids

    # ------------------------------------------------------------ what the search calls

    def propose(self, problem: Problem, seen: Sequence[StoredCandidate], most: int) -> list[Draft]:
        kernel = self.kernel(problem)
        if kernel is None or most < 1:
            return []
        self.function = problem.entry if problem.format == "op" else ""
        self.asked += 1
        draw = random.Random(f"{self.seed} {self.asked} {len(seen)}")
        known = {s.draft.code for s in seen} | self.proposed
        parents = self._parents(seen)
        drafts: list[Draft] = []
        for _ in range(TRIES * most):
            if len(drafts) == most:
                break
            draft = self._drafted(kernel, parents, draw, first=not known)
            if draft is not None and draft.code not in known and len(draft.code) <= MOST_TEXT:
                known.add(draft.code)
                self.proposed.add(draft.code)
                drafts.append(draft)
        return drafts

    def observe_verdict(self, seen: StoredCandidate) -> None:
        mine = self._fit(seen)
        before = [self.fitness[p] for p in seen.draft.parents if p in self.fitness]
        if mine is not None:
            self.fitness[seen.id] = mine
        for name in seen.draft.detail.get("tried", ()):
            if name in self.helped and before:
                self.helped[name][0] += 1
                self.helped[name][1] += mine is not None and mine > 1.02 * max(before)

    @property
    def remark(self) -> str:
        """Why it proposes nothing, if it does not."""
        return self.declined

    # ------------------------------------------------------------ parents

    def unfit(self, problem: Problem) -> str:
        """Why nothing can be proposed for a problem, as far as that is seen without running it; "" where it may be."""
        if problem.format not in FORMATS:
            return f"a problem of the format {problem.format}; of {', '.join(FORMATS)} it is taken"
        if problem.format == "op" and any(shape.required for shape in problem.shapes[1:]):
            return f"all sizes of {problem.entry}; a schedule is for one: {problem.entry}:CASE names it"
        if problem.device != "cpu":
            return f"a problem for {problem.device}; schedules are for the CPU"
        return "" if shutil.which(COMPILER) else f"there is no {COMPILER} to compile its candidates with"

    def kernel(self, problem: Problem) -> Kernel | None:
        """The problem's nest; None where there is none, and ``declined`` says why."""
        key = repr((problem.name, problem.format, problem.entry, sorted(problem.files.items())))
        if key not in self.kernels:
            self.declined = self.unfit(problem)
            try:
                self.kernels[key] = None if self.declined else nest_of(problem)
            except NotDerivable as error:
                self.kernels[key], self.declined = None, str(error)
        return self.kernels[key]

    def _fit(self, seen: StoredCandidate) -> float | None:
        """How many times as quick as the baseline for certain: the low end of the interval, so that luck is no merit.
        The two are timed in turns, and an hour's noise is in both."""
        if not seen.right or seen.judgement is None:
            return None
        return next((speed.low for speed in seen.judgement.speeds if speed.over == self.over), None)

    def _parents(self, seen: Sequence[StoredCandidate]) -> list[StoredCandidate]:
        """The quickest, best first."""
        found = []
        for one in seen:
            fit = self._fit(one) if one.draft.proposer == self.name and "steps" in one.draft.detail else None
            if fit is not None:
                self.fitness[one.id] = fit
                found.append((-fit, one.number, one))
        return [one for *_, one in sorted(found, key=lambda f: f[:2])[:ELITE]]

    # ------------------------------------------------------------ drafts

    def _drafted(
        self, kernel: Kernel, parents: list[StoredCandidate], draw: random.Random, *, first: bool
    ) -> Draft | None:
        plain = naive(kernel)
        if first:
            return self._draft(kernel, plain, [], [], (), "the plain loop nest")
        if len(parents) < FEW or draw.random() < OPENING_SHARE:
            schedule, steps = opening(kernel, draw)
            return self._draft(kernel, schedule, steps, [], (), "an opening") if steps else None
        mother = parents[int(len(parents) * draw.random() ** 2)]
        if len(parents) > 1 and draw.random() < CROSSOVER_SHARE:
            father = draw.choice([p for p in parents if p.id != mother.id])
            return self._crossed(kernel, plain, mother, father, draw)
        steps = _steps(mother)
        schedule, done = replay_steps(kernel, plain, steps)
        count = 1
        while draw.random() < (0.75 if not done else 0.45) and count < 10:
            count += 1
        bound_by = mother.judgement.bound_by if mother.judgement is not None else ""
        made, more = self._changed(kernel, schedule, done, bound_by, draw, count)
        return self._draft(kernel, made, [*done, *more], more, (mother.id,), "") if more else None

    def _crossed(
        self, kernel: Kernel, plain: Schedule, mother: StoredCandidate, father: StoredCandidate, draw: random.Random
    ) -> Draft | None:  # fmt: skip
        """Some of one's first moves, then those of the other's that are legal there."""
        ours, theirs = _steps(mother), _steps(father)
        kept = ours[: draw.randint(0, len(ours))] if draw.random() < 0.5 else ours
        added = [step for step in theirs if draw.random() < 0.7]
        schedule, done = replay_steps(kernel, plain, [*kept, *added])
        note = f"{mother.number} crossed with {father.number}"
        return self._draft(kernel, schedule, done, [], (mother.id, father.id), note)

    def _changed(
        self, kernel: Kernel, schedule: Schedule, done: Sequence[Step], bound_by: str, draw: random.Random, count: int
    ) -> tuple[Schedule, list[Step]]:  # fmt: skip
        more: list[Step] = []
        bottleneck = BOTTLENECK_KINDS.get(bound_by.split(" ")[0], "")
        names = list(MOVES)
        weights = [self._weight(name, bottleneck) for name in names]
        for _ in range(8 * count):
            if len(more) == count or len(done) + len(more) >= MOST_STEPS:
                break
            name = draw.choices(names, weights)[0]
            args = draw_args(make_plan(kernel, schedule), name, draw)
            if args is None:
                continue
            try:
                made = apply(kernel, schedule, name, args)
            except Illegal:
                continue
            if made != schedule:
                schedule = made
                more.append((name, args))
        return schedule, more

    def _weight(self, name: str, bottleneck: str) -> float:
        tried, helped = self.helped[name]
        return (GUIDED_WEIGHT if bottleneck in MOVES[name].bottlenecks else 1.0) * (0.5 + (helped + 1) / (tried + 2))

    def _draft(
        self, kernel: Kernel, schedule: Schedule, steps: Sequence[Step], tried: Sequence[Step],
        parents: tuple[str, ...], note: str,
    ) -> Draft | None:  # fmt: skip
        detail: dict[str, Any] = {
            "schedule": schedule.as_json(), "steps": [[n, dict(a)] for n, a in steps], "tried": [n for n, _ in tried],
        }  # fmt: skip
        code = candidate_of(make_plan(kernel, schedule), self.function)
        return Draft(code, "c++", self.name, parents, note or "; ".join(_said(s) for s in tried), detail)


def _steps(seen: StoredCandidate) -> list[Step]:
    return [(str(name), dict(args)) for name, args in seen.draft.detail["steps"]]


def _said(step: Step) -> str:
    name, args = step
    return f"{name} {' '.join(f'{k}={v}' for k, v in args.items())}"
