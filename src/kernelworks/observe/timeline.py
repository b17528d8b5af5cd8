"""How long each call of one undisturbed run took, and each gap between two calls.

The program is run plain and under the profiler. What the profiler adds per event (measured, ``overhead``) is
taken off every call and gap; what then differs from the plain wall clock is shared out in proportion, and said.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kernelworks.bench.faults import Memory, minor_faults
from kernelworks.ceilings.quiet import QUIET, WINDOW_S, Noise, sift
from kernelworks.observe.overhead import Floors
from kernelworks.observe.places import Survey
from kernelworks.observe.trace import Call, Trace, join, record, without_collection
from kernelworks.observe.watch import Outside, outside, watched

__all__ = [
    "Moment",
    "Plain",
    "Timeline",
    "fault_share",
    "first_run",
    "most_surveyed",
    "observe",
    "plain_run",
    "settle",
    "window_s",
]

Say = Callable[[str], None]

MOST_ROUNDS = 3
ENDLESS_S = 60  # after which a first run that has not ended is spoken of
RUNS_A_ROUND = 5  # what a round costs, in plain runs: one plain, one profiled, and sorting its calls
FEW_FAULTS = 0.03  # of the wall clock
LEAST_SURVEYED = 2048  # calls
SURVEY_S = 250e-6  # what one of them costs: to record, to read, to sort
NOTABLE_GAPS = 0.03  # of the wall clock
WINDOWS = 0.05  # of the budget, that a window of short plain runs takes at most
PATIENCE = 0.3  # of the budget, after which no quieter window is waited for


@dataclass(frozen=True)
class Moment:
    """A call, the seconds inside it, and the seconds between the call before and this one."""

    call: Call
    seconds: float
    gap: float


@dataclass(frozen=True)
class Timeline:
    """One run: the moments in order, the ``tail`` after the last call, and what others took of it add to ``wall``
    (seconds, plain, median)."""

    wall: float
    moments: tuple[Moment, ...]
    tail: float
    tail_freed: int
    scale: float  # by which calls and gaps were scaled to fit the wall clock after the profiler was taken off
    persistent: dict[int, int]
    elsewhere: int  # ops on other threads
    noisy: int  # windows of runs that were thrown away because others used the machine
    walls: tuple[float, ...]
    faults: int | None  # minor page faults of one timed run
    outside: Outside | None = None  # what the gaps were made of; None where they are too short to ask
    taken: float = 0.0  # seconds of a run for which its threads had no core, because others had them
    noise: Noise = QUIET  # of the windows that were kept
    loud: bool = False  # no window was quiet
    surveyed: int | None = None  # how many calls were surveyed, for all others like them; None where all were


def first_run(run: Callable[[], Any], say: Say) -> Plain:
    """The run that warms up, and in which a program that cannot be run says so. One that does not end is told of."""
    say("warming up")
    waiting = threading.Timer(
        ENDLESS_S, say, (f"warming up: {ENDLESS_S} s, and the program's first run has not ended",)
    )
    waiting.daemon = True
    waiting.start()
    try:
        return plain_run(run)
    finally:
        waiting.cancel()


def observe(
    run: Callable[[], Any],
    floors: Floors,
    *,
    budget_s: float,
    say: Say,
    first: Plain | None = None,
    memory: Memory | None = None,
) -> Timeline:
    """Runs the program plain, then profiled, as often as ``budget_s`` allows (1 to 3 times each, after the ``first``
    run), and once more to survey shapes and places. Raises what the program raises.

    A program that causes no page faults when it runs plain keeps its ``memory`` from then on: the profiler's own
    allocations between the program's would cause it tens of thousands."""
    first = first or first_run(run, say)
    rounds = max(1, min(MOST_ROUNDS, int(budget_s / max(RUNS_A_ROUND * first.wall, 1e-9))))
    patience, tries = PATIENCE * budget_s, 1 if budget_s < RUNS_A_ROUND * first.wall else 3 * rounds
    plain = sift(
        lambda: plain_run(run), rounds, window_s=window_s(budget_s), tries=tries, deadline_s=patience,
        say=lambda i: say(f"timing without the profiler, {i} of {rounds}"),
    )  # fmt: skip
    if statistics.median(p.faults for p in plain.samples) * floors.fault < FEW_FAULTS * min(
        p.wall for p in plain.samples
    ):
        (memory or Memory()).keep()
        plain_run(run)

    def under_the_profiler() -> tuple[Trace, int]:
        before = minor_faults()
        trace = _without_output(record(run))
        return trace, minor_faults() - before

    profiled = sift(
        under_the_profiler, rounds, tries=tries, deadline_s=patience, enough_s=budget_s / 2,
        say=lambda i: say(f"timing every op, {i} of {rounds}"),
    )  # fmt: skip
    timed, faults = [trace for trace, _ in profiled.samples], [faults for _, faults in profiled.samples]
    say("surveying shapes and places")
    survey = Survey(most_surveyed(budget_s, first.wall))
    surveyed = _without_output(record(run, survey=survey))
    wall = statistics.median(p.wall for p in plain.samples)
    taken = wall * statistics.median(n.taken_s / n.wall_s if n.wall_s else 0.0 for n in plain.noises)
    with without_collection():
        timeline = settle(
            wall,
            timed,
            surveyed,
            floors,
            persistent=survey.persistent,
            noisy=plain.thrown + profiled.thrown,
            walls=tuple(p.wall for p in plain.samples),
            faults=int(statistics.median_low(faults)),
            taken=taken,
        )
    timeline = dataclasses.replace(
        timeline, noise=(profiled if profiled.loud else plain).noise, loud=plain.loud or profiled.loud
    )
    own = timeline.tail + sum(max(0.0, moment.gap - floors.gap) for moment in timeline.moments)
    if own < NOTABLE_GAPS * wall:
        return timeline
    say("watching what the program does between ops")
    traces, looks = watched(run)
    names = [moment.call.name for moment in timeline.moments]
    return dataclasses.replace(timeline, outside=outside(traces, looks, names))


def most_surveyed(budget_s: float, wall: float) -> float:
    """How many calls are looked at, of a program that takes ``wall`` seconds."""
    return max(LEAST_SURVEYED, max(budget_s, wall) / SURVEY_S)


@dataclass(frozen=True)
class Plain:
    """One run without the profiler: seconds and minor page faults."""

    wall: float
    faults: int


def plain_run(run: Callable[[], Any]) -> Plain:
    faults = minor_faults()
    start = time.perf_counter()
    run()
    return Plain(time.perf_counter() - start, minor_faults() - faults)


def window_s(budget_s: float) -> float:
    """For how long short runs are repeated: what others did meanwhile is known in ticks of 10 ms."""
    return min(WINDOW_S, WINDOWS * budget_s)


def _without_output(trace: Trace) -> Trace:
    trace.output = None
    return trace


def settle(
    wall: float,
    timed: list[Trace],
    survey: Trace,
    floors: Floors,
    *,
    persistent: dict[int, int] | None = None,
    noisy: int = 0,
    walls: tuple[float, ...] = (),
    faults: int | None = None,
    taken: float = 0.0,
) -> Timeline:
    """The timeline of one plain run from profiled ones: what the profiler adds taken off, then fitted to ``wall`` less
    what others took of it.

    Where all profiled runs made the same calls, each call and gap is its median over them; else the run whose wall
    clock is the median stands for all.
    """
    timed = sorted(timed, key=lambda t: t.end - t.start)
    middle = timed[(len(timed) - 1) // 2]
    calls = join(middle, survey)
    alike = [t for t in timed if [c.name for c in t.calls] == [c.name for c in middle.calls]]
    sheared = [_sheared(t, floors) for t in alike]
    spans = [statistics.median_low(column) for column in zip(*(s for s, _ in sheared), strict=True)]
    gaps = [statistics.median_low(column) for column in zip(*(g for _, g in sheared), strict=True)]
    total = sum(spans) + sum(gaps)
    taken = min(taken, 0.9 * wall)
    scale = (wall - taken) / total if total else 1.0
    moments = tuple(
        Moment(call, span * scale, gap * scale) for call, span, gap in zip(calls, spans, gaps[:-1], strict=True)
    )
    tail = gaps[-1] * scale if total else wall - taken
    return Timeline(
        wall, moments, tail, survey.freed, scale, persistent or {}, middle.elsewhere, noisy, walls or (wall,), faults,
        taken=taken,
        surveyed=len(survey.calls) if survey.cut else None,
    )  # fmt: skip


def fault_share(faults: int | None, calls: Iterable[Call]) -> float:
    """By what to multiply the survey's page faults: a survey's own allocations cause some more."""
    surveyed = sum(call.place.faults for call in calls)
    return min(1.0, faults / surveyed) if faults is not None and surveyed else 1.0


def _sheared(trace: Trace, floors: Floors) -> tuple[list[float], list[float]]:
    """Seconds inside each call and before it (one gap more than calls), without what the profiler added."""
    spans, gaps, at = [], [], trace.start
    for call in trace.calls:
        gaps.append(max(0.0, (call.start - at) / 1e9 - floors.event))
        spans.append(max(0.0, (call.end - call.start) / 1e9 - floors.event * (call.events - 1)))
        at = call.end
    gaps.append(max(0.0, (trace.end - at) / 1e9))
    return spans, gaps
