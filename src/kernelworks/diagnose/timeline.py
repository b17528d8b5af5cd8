"""How long each call of one undisturbed run took, and each gap between two calls.

The program is run plain and under the profiler. What the profiler adds per event (measured, ``overhead``) is
taken off every call and gap; what then differs from the plain wall clock is shared out in proportion, and said.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kernelworks.ceilings.quiet import cpu_times, foreign_share
from kernelworks.diagnose.overhead import Floors
from kernelworks.diagnose.places import Survey
from kernelworks.diagnose.trace import Call, Trace, join, record, without_collection
from kernelworks.diagnose.watch import Outside, outside, watched

__all__ = ["Moment", "Plain", "Timeline", "fault_share", "observe", "plain_run", "settle"]

Say = Callable[[str], None]

MOST_ROUNDS = 3
RUNS_A_ROUND = 5  # what a round costs, in plain runs: one plain, one profiled, and sorting its calls
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
FEW_FAULTS = 0.03  # of the wall clock
NOTABLE_GAPS = 0.03  # of the wall clock
NOISY = 0.10  # of the cores, taken by others


@dataclass(frozen=True)
class Moment:
    """A call, the seconds inside it, and the seconds between the call before and this one."""

    call: Call
    seconds: float
    gap: float


@dataclass(frozen=True)
class Timeline:
    """One run: the moments in order and the ``tail`` after the last call add to ``wall`` (seconds, plain, median)."""

    wall: float
    moments: tuple[Moment, ...]
    tail: float
    tail_freed: int
    scale: float  # by which calls and gaps were scaled to fit the wall clock after the profiler was taken off
    persistent: dict[int, int]
    elsewhere: int  # ops on other threads
    noisy: int  # plain runs during which others took over a tenth of the cores
    walls: tuple[float, ...]
    faults: int | None  # minor page faults of one timed run
    outside: Outside | None = None  # what the gaps were made of; None where they are too short to ask


def observe(run: Callable[[], Any], floors: Floors, *, budget_s: float, say: Say) -> Timeline:
    """Runs the program plain, then profiled, as often as ``budget_s`` allows (1 to 3 times each, after one run to warm
    up), and once more to survey shapes and places. Raises what the program raises."""
    say("warming up")
    plain_run(run)
    say("timing without the profiler")
    plain = [plain_run(run)]
    rounds = max(1, min(MOST_ROUNDS, int(budget_s / max(RUNS_A_ROUND * plain[0].wall, 1e-9))))
    for i in range(1, rounds):
        say(f"timing without the profiler, {i + 1} of {rounds}")
        plain.append(plain_run(run))
    if statistics.median(p.faults for p in plain) * floors.fault < FEW_FAULTS * min(p.wall for p in plain):
        _keep_memory()
        plain_run(run)
    timed, faults = [], []
    for i in range(rounds):
        say(f"timing every op, {i + 1} of {rounds}")
        before = _faults()
        timed.append(_without_output(record(run)))
        faults.append(_faults() - before)
    say("surveying shapes and places")
    survey = Survey()
    surveyed = _without_output(record(run, survey=survey))
    quiet = [p for p in plain if p.foreign <= NOISY] or plain
    wall = statistics.median(p.wall for p in quiet)
    with without_collection():
        timeline = settle(
            wall,
            timed,
            surveyed,
            floors,
            persistent=survey.persistent,
            noisy=len([p for p in plain if p.foreign > NOISY]),
            walls=tuple(p.wall for p in plain),
            faults=int(statistics.median_low(faults)),
        )
    own = timeline.tail + sum(max(0.0, moment.gap - floors.gap) for moment in timeline.moments)
    if own < NOTABLE_GAPS * wall:
        return timeline
    say("watching what the program does between ops")
    traces, looks = watched(run)
    names = [moment.call.name for moment in timeline.moments]
    return dataclasses.replace(timeline, outside=outside(traces, looks, names))


def _keep_memory() -> None:
    """Tells malloc to give nothing back to the system from here on.

    Only for programs that cause no page faults when they run plain: the profiler's own allocations between theirs would
    cause them tens of thousands. What malloc adapts by itself cannot be restored, so later runs keep the setting, those
    before and after a fix alike. Nothing happens where the C library is not glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc accepts
        library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


@dataclass(frozen=True)
class Plain:
    """One run without the profiler: seconds, the share of the cores that others took, minor page faults."""

    wall: float
    foreign: float
    faults: int


def plain_run(run: Callable[[], Any]) -> Plain:
    cpu, faults = cpu_times(), _faults()
    start = time.perf_counter()
    run()
    wall = time.perf_counter() - start
    return Plain(wall, foreign_share(cpu, cpu_times()), _faults() - faults)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


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
) -> Timeline:
    """The timeline of one plain run from profiled ones: what the profiler adds taken off, then fitted to ``wall``.

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
    scale = wall / total if total else 1.0
    moments = tuple(
        Moment(call, span * scale, gap * scale) for call, span, gap in zip(calls, spans, gaps[:-1], strict=True)
    )
    tail = gaps[-1] * scale if total else wall
    return Timeline(
        wall, moments, tail, survey.freed, scale, persistent or {}, middle.elsewhere, noisy, walls or (wall,), faults
    )


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
