"""One undisturbed run of a program on the CPU: how long each call took, and each gap between two calls.

The program is run plain and under the profiler. What the profiler adds per event (measured, ``overhead``) is
taken off every call and gap; what then differs from the plain wall clock is shared out in proportion, and said.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelworks.measure.clock.noise import MOST_KEPT, Noise, SampledWindows, sample_windows
from kernelworks.measure.clock.page_faults import Memory, learn_heap, minor_faults
from kernelworks.profile import sampler
from kernelworks.profile.budget import Budget
from kernelworks.profile.non_compute import COMMUNICATION, time_category
from kernelworks.profile.overhead import PAGE, Floors
from kernelworks.profile.replay import ALLOCATION, PYTHON, Gap
from kernelworks.profile.sampler import break_down_gaps, watch_program
from kernelworks.profile.timeline import (
    PATIENCE,
    CallRun,
    Pages,
    PlainRun,
    Timeline,
    first_run,
    plain_run,
    plain_walls,
    profile_run,
    survey_limit,
    survey_run,
    window_s,
)
from kernelworks.profile.trace import Call, Trace, join, without_collection

__all__ = ["PREEMPTION", "UNWATCHED_TIME", "CpuTimeline", "Moment", "expected_runs", "fit_timeline", "observe"]

Say = Callable[[str], None]

PREEMPTION = "taken"  # This cause of a gap is CPU contention: other processes had the cores.
UNWATCHED_TIME = "unwatched"  # This time is not attributed, as the budget was over.
MOST_ROUNDS = 3
COLD = 2.0  # times as long as a run after it, and the first one did what no other does: it read a model's weights
RUNS_A_ROUND = 5  # A round costs so many plain runs: one plain, one profiled, and sorting its calls.
FEW_FAULTS = 0.03  # Fewer page faults than this share of the wall clock do not matter.
NOTABLE_GAPS = 0.03  # Gaps from this share of the wall clock on are looked into.


@dataclass(frozen=True)
class Moment:
    """A call, the seconds inside it, and the seconds between the call before and this one."""

    call: Call
    seconds: float
    gap: float


@dataclass(frozen=True, kw_only=True)
class CpuTimeline(Timeline):
    """The moments in order, the ``tail`` after the last call, and what others took of it add to ``wall``."""

    moments: tuple[Moment, ...]
    rest: float  # seconds after the last call
    floors: Floors
    scale: float = 1.0  # by which calls and gaps were scaled to fit the wall clock after the profiler was taken off
    freed: int = 0  # bytes of large blocks given back after the last call
    faults: int | None = None  # minor page faults of one timed run

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(moment.call for moment in self.moments)

    @property
    def tail(self) -> float:
        return self.rest

    @property
    def profiler_slowdown(self) -> float:
        return 1 / self.scale

    def entries(self) -> list[CallRun]:
        floors, each = self.floors, self.own_pages.each
        release = self._release()
        return [
            CallRun(
                moment.call,
                before=moment.gap,
                host=moment.seconds,
                seconds=moment.seconds,
                exclusive=moment.seconds,
                entry=min(moment.gap, floors.gap),
                released=moment.call.freed * release,
                fresh=moment.call.place.faults * each,
                least=floors.span * moment.call.events,
            )
            for moment in self.moments
        ]

    def gaps(self) -> list[Gap]:
        release = self._release()
        found: list[Gap] = []
        for number, moment in enumerate(self.moments):
            seconds = moment.gap - min(moment.gap, self.floors.gap)
            found += self._cut(number, moment.call, seconds, moment.call.freed * release)
        found += self._cut(len(self.moments), None, self.rest, self.freed * release)
        if self.taken:
            found.append(Gap(PREEMPTION, self.taken, None))
        return found

    def _cut(self, number: int, call: Call | None, seconds: float, release: float) -> Iterator[Gap]:
        """A gap by what was seen in it: giving memory back first, and what nothing else was seen in is Python."""
        freed = min(seconds, release)
        yield Gap(ALLOCATION, freed, call)
        rest = seconds - freed
        if self.outside is not None:
            at = self.outside.of(number)
            for kind in (sampler.NATIVE, sampler.WAITING, sampler.OTHER_THREADS):
                value = at.share(kind) * (seconds - freed)
                rest -= value
                waits = kind != sampler.NATIVE and number > 0 and time_category(self.moments[number - 1].call.name)
                yield Gap(COMMUNICATION if waits == COMMUNICATION else kind, value, call)
        yield Gap(UNWATCHED_TIME if self.unwatched else PYTHON, rest, call)

    def _release(self) -> float:
        """Seconds a byte for giving blocks back, never for more pages than the run took fresh: malloc keeps others."""
        freed = (sum(call.freed for call in self.calls) + self.freed) / PAGE
        return min(1.0, self._taken(self.calls, self.faults) / freed) * self.floors.free / PAGE if freed else 0.0

    @staticmethod
    def _share(calls: Iterable[Call], faults: int | None) -> float:
        """By what to multiply the survey's page faults: a survey's own allocations cause some more."""
        seen = sum(call.place.faults for call in calls)
        return min(1.0, faults / seen) if faults is not None and seen else 1.0

    def _taken(self, calls: Sequence[Call], faults: int | None) -> float:
        """Fresh pages of a run of these calls."""
        return sum(call.place.faults for call in calls) * self._share(calls, faults)

    def pages(self, calls: Sequence[Call], freed: int, faults: int | None) -> Pages:
        freed += sum(call.freed for call in calls)
        back = min(self._taken(calls, faults), freed / PAGE) * self.floors.free
        return Pages(self._share(calls, faults) * self.floors.fault, back)

    @property
    def own_pages(self) -> Pages:
        return self.pages(self.calls, self.freed, self.faults)


def observe(
    run: Callable[[], Any],
    floors: Floors,
    *,
    budget_s: float,
    say: Say,
    first: PlainRun | None = None,
    memory: Memory | None = None,
) -> CpuTimeline:
    """Runs the program plain, then profiled, as often as ``budget_s`` allows (1 to 3 times each, after the ``first``
    run), and once more to survey shapes and places; and as the budget allows, to see what it does between ops. Raises
    what the program raises.

    A program that causes no page faults when it runs plain keeps its ``memory`` from then on: the profiler's own
    allocations between the program's would cause it tens of thousands."""
    first = first or first_run(run, say)
    budget = Budget(budget_s, first.wall)
    run = budget.count_runs(run)
    patience, (rounds, tries) = PATIENCE * budget_s, _rounds(budget_s, first.wall)
    plain = _plain(run, rounds, tries, budget_s, first.wall, say)
    if COLD * (warm := min(p.wall for p in plain.samples)) < first.wall:
        budget.wall = warm
        rounds, tries = _rounds(budget_s, warm)
        plain = _plain(run, rounds, tries, budget_s, warm, say) if rounds > len(plain.samples) else plain
    wall, walls = plain_walls(plain.samples)
    taken = [p.faults for p in plain.samples]
    if statistics.median(taken) * floors.fault < FEW_FAULTS * min(walls):
        (memory or Memory()).keep()
        plain_run(run)
    else:
        learn_heap(taken, int(FEW_FAULTS * min(walls) / floors.fault))

    looking: list[float] = []

    def under_the_profiler() -> tuple[Trace, int]:
        before, begun = minor_faults(), time.perf_counter()
        trace = profile_run(run)
        looking.append(time.perf_counter() - begun)
        return trace, minor_faults() - before

    profiled = sample_windows(
        under_the_profiler, rounds, tries=tries, deadline_s=patience, enough_s=budget_s / 2,
        say=lambda which: say(f"timing every op, run {which}, each more than {_rounded(wall)}"),
    )  # fmt: skip
    say(f"surveying shapes and places: one run, more than {_rounded(wall)}")
    survey, persistent = survey_run(run, survey_limit(budget_s, budget.wall))
    with without_collection():
        timeline = fit_timeline(
            wall,
            [trace for trace, _ in profiled.samples],
            survey,
            floors,
            persistent=persistent,
            noisy=plain.thrown + profiled.thrown,
            walls=walls,
            faults=int(statistics.median_low(faults for _, faults in profiled.samples)),
            taken=wall * plain.noise.kept_share,
        )
    timeline = dataclasses.replace(
        timeline,
        noise=_noise(plain, profiled),
        loud=plain.loud or profiled.loud,
        looking_s=max(0.0, min(looking) - wall),
        collected=statistics.median(p.collected for p in plain.samples),
    )
    own = timeline.tail + sum(max(0.0, moment.gap - floors.gap) for moment in timeline.moments)
    if own < NOTABLE_GAPS * wall:
        return timeline
    if budget.seconds_left < timeline.looking_s:
        return dataclasses.replace(timeline, unwatched=True)
    say(f"watching what the program does between ops: two runs or more of {_rounded(wall)}")
    traces, looks = watch_program(run)
    names = [moment.call.name for moment in timeline.moments]
    return dataclasses.replace(timeline, outside=break_down_gaps(traces, looks, names))


def _noise(plain: SampledWindows[Any], profiled: SampledWindows[Any]) -> Noise:
    """What others took of the runs whose wall clock is told; of the profiled ones only if those alone were loud."""
    if profiled.loud and not plain.loud:
        return dataclasses.replace(profiled.noise, during="while every op was timed")
    return plain.noise


def expected_runs(budget_s: float, wall: float) -> int:
    """How many runs of a program that takes so long are made after the first one, if nobody disturbs them."""
    rounds, _ = _rounds(budget_s, wall)
    return 2 * rounds + 3


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s" if seconds >= 0.1 else f"{1e3 * seconds:.0f} ms"


def _rounds(budget_s: float, wall: float) -> tuple[int, int]:
    """How many runs of a program that takes so long are timed, and how many are tried for them."""
    rounds = max(1, min(MOST_ROUNDS, int(budget_s / max(RUNS_A_ROUND * wall, 1e-9))))
    return rounds, 1 if budget_s < RUNS_A_ROUND * wall else 3 * rounds


def _plain(
    run: Callable[[], Any], rounds: int, tries: int, budget_s: float, last_s: float, say: Say
) -> SampledWindows[PlainRun]:
    return sample_windows(
        lambda: plain_run(run), rounds, window_s=window_s(budget_s), tries=tries, deadline_s=PATIENCE * budget_s,
        say=lambda which: say(f"timing run {which}, the last one took {_rounded(last_s)}"),
    )  # fmt: skip


def fit_timeline(
    wall: float,
    profiled: list[Trace],
    survey: Trace,
    floors: Floors,
    *,
    persistent: dict[int, int] | None = None,
    noisy: int = 0,
    walls: tuple[float, ...] = (),
    faults: int | None = None,
    taken: float = 0.0,
) -> CpuTimeline:
    """The timeline of one plain run from profiled ones: what the profiler adds taken off, then fitted to ``wall`` less
    what others took of it.

    If all profiled runs made the same calls, each call and gap is its median over them; else the run whose wall
    clock is the median stands for all.
    """
    profiled = sorted(profiled, key=lambda t: t.end - t.start)
    middle = profiled[(len(profiled) - 1) // 2]
    calls = join(middle, survey)
    alike = [t for t in profiled if [c.name for c in t.calls] == [c.name for c in middle.calls]]
    sheared = [_sheared(t, floors) for t in alike]
    spans = [statistics.median_low(column) for column in zip(*(s for s, _ in sheared), strict=True)]
    gaps = [statistics.median_low(column) for column in zip(*(g for _, g in sheared), strict=True)]
    total = sum(spans) + sum(gaps)
    taken = min(taken, MOST_KEPT * wall)
    scale = (wall - taken) / total if total else 1.0
    moments = tuple(
        Moment(call, span * scale, gap * scale) for call, span, gap in zip(calls, spans, gaps[:-1], strict=True)
    )
    return CpuTimeline(
        wall=wall,
        moments=moments,
        rest=gaps[-1] * scale if total else wall - taken,
        floors=floors,
        freed=survey.freed,
        scale=scale,
        persistent=persistent or {},
        elsewhere=middle.elsewhere,
        noisy=noisy,
        walls=walls or (wall,),
        faults=faults,
        taken=taken,
        surveyed=len(survey.calls) if survey.cut else None,
        compiled=survey.compiled,
        broken=survey.broken,
        recompiled=survey.recompiled,
    )


def _sheared(trace: Trace, floors: Floors) -> tuple[list[float], list[float]]:
    """Seconds inside each call and before it (one gap more than calls), without what the profiler added."""
    spans, gaps, at = [], [], trace.start
    for call in trace.calls:
        gaps.append(max(0.0, (call.start - at) / 1e9 - floors.event))
        spans.append(max(0.0, (call.end - call.start) / 1e9 - floors.event * (call.events - 1)))
        at = call.end
    gaps.append(max(0.0, (trace.end - at) / 1e9))
    return spans, gaps
