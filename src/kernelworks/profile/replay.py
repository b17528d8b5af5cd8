"""A program on a GPU, played again: what the host did in order, what it gave the device, and where it waited for it.

The profiler slows the host (every op and every launch is recorded) and hardly the device. So its times are not the
program's: the host's are scaled until the replay takes as long as the plain run, and the device's are kept. The replay
also says what would happen if something took less time, which no sum of times can: a kernel made quicker gives nothing
back if the device waits for the host.

The model: one host thread, streams that do their work in order, a launch that takes ``Pace.latency`` from the host's
call to the device's start when the device is idle and leaves ``Pace.gap`` between two kernels when it is not, and a
queue of ``DEPTH`` launches, beyond which the host waits.
"""

from __future__ import annotations

import bisect
import re
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelworks.profile.non_compute import COMMUNICATION, COMPILING, INPUT, time_category
from kernelworks.profile.overhead import Floors
from kernelworks.profile.trace import Call, DeviceWork, Runtime, Trace

__all__ = [
    "ALLOCATION", "DISPATCH", "LAUNCH", "PYTHON", "SYNC", "Gap", "Job", "Pace", "ReplayResult", "Span", "Step",
    "busy_seconds", "critical", "fit_scales", "gaps", "pace", "play", "short", "steps",
]  # fmt: skip

PYTHON, DISPATCH, LAUNCH, SYNC, ALLOCATION = "python", "dispatch", "launch", "sync", "allocation"
DEPTH = 1024  # The driver queues so many launches.
BLOCKED_FACTOR = 20  # A launch that takes so many times the usual one waited for space in the queue.

SYNC_CALLS = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize",
    "cuEventSynchronize",
)  # fmt: skip
ALLOCATES = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMallocHost", "cuMem", "cudaMemGetInfo", "cudaHostRegister",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """Work for the device: ``inner`` as in trace.Runtime."""

    name: str
    seconds: float
    stream: int
    call: Call | None
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the host did. ``jobs`` are given to the device when it begins; ``waits`` until the device has done
    all it was given, and ``seconds`` are what it takes beyond that. ``call`` is the op it is part of, or that follows.
    """

    kind: str
    seconds: float
    call: Call | None = None
    jobs: tuple[Job, ...] = ()
    waits: bool = False


@dataclass(frozen=True)
class Pace:
    """Seconds: from a launch to its start on an idle device, and between two kernels on a busy one."""

    latency: float = 5e-6
    gap: float = 1e-6


@dataclass(frozen=True, slots=True)
class Span:
    """When a job ran. ``issued`` is when the host launched it; ``late`` whether it then waited for the device."""

    start: float
    end: float
    issued: float
    step: int
    job: Job
    late: bool
    before: int  # the span that it waited for, -1 for none
    queue_blocker: int = -1  # the span that the host waited for before it could launch it, -1 for none


@dataclass
class ReplayResult:
    """One replay, in seconds from its start."""

    wall: float = 0.0
    spans: list[Span] = field(default_factory=list)
    host: list[tuple[float, float]] = field(default_factory=list)  # of each step; a wait's includes the waiting
    freed: list[float] = field(default_factory=list)  # when the device let a waiting step go; its start otherwise
    blocker: list[int] = field(default_factory=list)  # the span that a step waited for, -1 for none


# ---------------------------------------------------------------- from a trace


def steps(trace: Trace, calls: Sequence[Call], floors: Floors) -> list[Step]:
    """The host's steps in order, without what the profiler added per op. ``calls`` are the trace's, with shapes."""
    usual = _usual_launch(trace)
    made: list[Step] = []
    reader = _Reader(made, usual)
    at, between = trace.start, deque(sorted(trace.between, key=lambda r: r.start))
    for call in calls:
        first = floors.event
        while between and between[0].start < call.start:
            runtime = between.popleft()
            reader.gap(PYTHON, runtime.start - at, 0.0, call)
            reader.runtime(runtime, None)
            at = max(at, runtime.end)
        reader.gap(PYTHON, call.start - at, first, call)
        begun, kind = max(at, call.start), time_category(call.name) or DISPATCH
        inside = sum(max(0, r.end - max(r.start, begun)) for r in call.runtime)
        own = max(0, call.end - begun - inside) / 1e9
        kept = max(0.0, own - floors.event * (call.events - 1)) / own if own else 0.0
        at = begun
        for runtime in sorted(call.runtime, key=lambda r: r.start):
            reader.gap(kind, (runtime.start - at) * kept, 0.0, call)
            reader.runtime(runtime, call)
            at = max(at, runtime.end)
        reader.gap(kind, (call.end - at) * kept, 0.0, call)
        at = max(at, call.end)
    for runtime in between:
        reader.gap(PYTHON, runtime.start - at, 0.0, None)
        reader.runtime(runtime, None)
        at = max(at, runtime.end)
    reader.gap(PYTHON, trace.end - at, 0.0, None)
    return made


class _Reader:
    def __init__(self, made: list[Step], usual: float) -> None:
        self.made, self.usual, self.busy = made, usual, 0  # busy: when the device has done all it was given

    def gap(self, kind: str, ns: float, less: float, call: Call | None) -> None:
        seconds = max(0.0, ns / 1e9 - less)
        if seconds:
            self.made.append(Step(kind, seconds, call))

    def runtime(self, made: Runtime, call: Call | None) -> None:
        seconds = (made.end - made.start) / 1e9
        jobs = tuple(Job(w.name, w.seconds, w.stream, w.call or call, 0 if w.call else made.inner) for w in made.works)
        busy_before = self.busy
        for work in made.works:
            self.busy = max(self.busy, work.end)
        beyond = (made.end - min(max(made.start, self.busy), made.end)) / 1e9
        if made.name.startswith(SYNC_CALLS):
            self.made.append(Step(SYNC, beyond, call, jobs, waits=True))
        elif made.name.startswith(ALLOCATES):
            frees = "Free" in made.name and busy_before > made.start
            self.made.append(Step(ALLOCATION, beyond if frees else seconds, call, jobs, waits=frees))
        elif jobs and "emcpy" in made.name and made.end >= made.works[-1].end:
            self.made.append(Step(SYNC, beyond, call, jobs, waits=True))  # a copy from or to memory that is not pinned
        elif jobs or "Launch" in made.name:
            blocked = seconds > BLOCKED_FACTOR * self.usual and busy_before > made.end
            self.made.append(Step(LAUNCH, self.usual if blocked else seconds, call, jobs))
        else:
            self.made.append(Step(DISPATCH if call else PYTHON, seconds, call))


def _all_runtime(trace: Trace) -> list[Runtime]:
    found = [r for call in trace.calls for r in call.runtime] + trace.between
    return sorted(found, key=lambda r: r.start)


def _usual_launch(trace: Trace) -> float:
    found = [(r.end - r.start) / 1e9 for r in _all_runtime(trace) if r.works and "Launch" in r.name]
    return statistics.median(found) if found else 3e-6


def pace(trace: Trace) -> Pace:
    """Latency and gap as this trace shows them; the usual ones if it shows none."""
    latencies, gaps, ended = [], [], dict[int, DeviceWork]()
    for runtime in _all_runtime(trace):
        for work in runtime.works:
            before = ended.get(work.stream)
            if before is None or before.end < runtime.start:
                latencies.append((work.start - runtime.start) / 1e9)
            elif before.end > runtime.end + 20_000 and work.start >= before.end:
                gaps.append((work.start - before.end) / 1e9)
            ended[work.stream] = work
    usual = Pace()
    return Pace(
        statistics.median(latencies) if len(latencies) > 2 else usual.latency,
        statistics.median(gaps) if len(gaps) > 10 else usual.gap,
    )


# ---------------------------------------------------------------- playing


def play(
    program: Sequence[Step], at: Pace, *, host: float = 1.0, device: float = 1.0, waits: bool = True
) -> ReplayResult:
    """One run of the steps. ``host`` and ``device`` scale their seconds. Without ``waits`` only the last one waits."""
    done = ReplayResult()
    free: dict[int, int] = {}  # stream -> its last span
    last = -1  # the span that ends last
    now = 0.0
    final = max((i for i, step in enumerate(program) if step.waits), default=-1)
    spans = done.spans
    for number, step in enumerate(program):
        begun, blocker, queue_blocker = now, -1, -1
        if len(spans) >= DEPTH and step.jobs and spans[len(spans) - DEPTH].end > now:
            blocker = queue_blocker = len(spans) - DEPTH
            now = spans[queue_blocker].end
        for job in step.jobs:
            before = free.get(job.stream, -1)
            ready, idle = now + at.latency * host, spans[before].end + at.gap if before >= 0 else 0.0
            late = before >= 0 and idle > ready
            start = idle if late else ready
            spans.append(Span(start, start + job.seconds * device, now, number, job, late, before, queue_blocker))
            free[job.stream] = len(spans) - 1
            if last < 0 or spans[-1].end >= spans[last].end:
                last = len(spans) - 1
        released = now
        if step.waits and (waits or number == final) and last >= 0 and spans[last].end > now:
            released, blocker = spans[last].end, last
        now = released + step.seconds * host
        done.host.append((begun, now))
        done.freed.append(released)
        done.blocker.append(blocker)
    done.wall = max([now, *(spans[i].end for i in free.values())])
    return done


LEAST_HOST, MOST_HOST = 0.25, 1.25


def fit_scales(program: Sequence[Step], at: Pace, wall: float) -> tuple[float, float]:
    """The scales of host and device with which the replay takes ``wall``.

    The host's is fitted alone while that is enough. If the program waits for the device whatever the host does, or
    for a host slower than the profiled one, both are scaled alike.
    """
    low, high = LEAST_HOST, MOST_HOST
    fastest, slowest = play(program, at, host=low).wall, play(program, at, host=high).wall
    if not fastest <= wall <= slowest:
        middle = 0.7 if wall < fastest or slowest - fastest < 0.1 * wall else high
        share = 1.0
        for _ in range(8):  # latency and gap are not scaled, so one division does not do
            share *= wall / play(program, at, host=middle * share, device=share).wall
        return middle * share, share
    for _ in range(30):
        middle = (low + high) / 2
        if play(program, at, host=middle).wall < wall:
            low = middle
        else:
            high = middle
    return (low + high) / 2, 1.0


# ---------------------------------------------------------------- what was waited for


@dataclass(frozen=True)
class Gap:
    """Seconds in which the device did nothing, and why: a step's kind. ``call`` as the step's."""

    kind: str
    seconds: float
    call: Call | None


def gaps(program: Sequence[Step], played: ReplayResult) -> list[Gap]:
    """The idle device's time, cut by what it waited for. With the busy time it adds to the wall clock.

    A kernel starts a latency after its launch, so the device was idle for what the host did in a time as long just
    before that launch, not for what it did meanwhile. If the host waited for the device then, and between two
    kernels that were both queued, it is the launch itself that takes the time.
    """
    found: list[Gap] = []
    ends = [end for _, end in played.host]
    busy = 0.0
    for span in sorted(played.spans, key=lambda s: s.start):
        if span.start > busy and span.late:
            found.append(Gap(LAUNCH, span.start - busy, span.job.call))
        elif span.start > busy:
            _overlay(program, played, ends, span.issued - (span.start - busy), span.issued, span.job.call, found)
        busy = max(busy, span.end)
    _overlay(program, played, ends, busy, played.wall, None, found)
    return [gap for gap in found if gap.seconds > 0]


def _overlay(
    program: Sequence[Step],
    played: ReplayResult,
    ends: list[float],
    since: float,
    until: float,
    launched: Call | None,
    found: list[Gap],
) -> None:
    """Cuts the time between two moments of the host by its steps. ``launched`` is the call whose launch ends it."""
    if since < 0.0:
        found.append(Gap(LAUNCH, min(until, 0.0) - since, launched))
        since = min(until, 0.0)
    number = bisect.bisect_right(ends, since)
    while since < until and number < len(program):
        step, freed, end = program[number], min(played.freed[number], until), min(ends[number], until)
        if freed > since and played.blocker[number] >= 0:
            found.append(Gap(LAUNCH, freed - since, launched or step.call))
            since = freed
        if end > since:
            found.append(Gap(step.kind, end - since, step.call))
            since = end
        number += 1
    if until > since:
        found.append(Gap(PYTHON, until - since, None))


def busy_seconds(played: ReplayResult) -> list[float]:
    """Seconds of each span that no span before it covers: they add to the time in which the device was busy."""
    seconds = [0.0] * len(played.spans)
    covered = 0.0
    for number in sorted(range(len(played.spans)), key=lambda i: played.spans[i].start):
        span = played.spans[number]
        seconds[number] = max(0.0, span.end - max(span.start, covered))
        covered = max(covered, span.end)
    return seconds


def critical(program: Sequence[Step], played: ReplayResult) -> tuple[list[float], dict[str, float]]:
    """The critical path, walked back from the end: seconds of each span on it, and of the host by kind of step.

    Both together, the waiting between kernels included (as launches), add to the wall clock.
    """
    on = [0.0] * len(played.spans)
    host = dict.fromkeys((PYTHON, DISPATCH, LAUNCH, SYNC, ALLOCATION, COMPILING, INPUT, COMMUNICATION), 0.0)
    number, now = len(program) - 1, played.wall
    latest = max(range(len(played.spans)), key=lambda i: played.spans[i].end, default=-1)
    span = latest if latest >= 0 and played.host and played.spans[latest].end > played.host[-1][1] else -1
    while now > 0:
        if span >= 0:
            it = played.spans[span]
            on[span] += now - it.start
            now, span = it.start, (it.before if it.late else -1)
            if span >= 0:
                host[LAUNCH] += now - played.spans[span].end
                now = played.spans[span].end
            else:
                host[LAUNCH] += now - it.issued
                now, number, span = it.issued, it.step - 1, it.queue_blocker
            continue
        if number < 0:
            host[PYTHON] += now
            break
        begun, blocker = played.host[number][0], played.blocker[number]
        if blocker >= 0 and played.freed[number] <= now:
            host[program[number].kind] += now - played.freed[number]
            now, span = played.freed[number], blocker
            continue
        host[program[number].kind] += max(0.0, now - begun)
        now, number = min(now, begun), number - 1
    return on, host


# ---------------------------------------------------------------- names


def short(name: str) -> str:
    """A kernel's name without its return type, namespaces and arguments."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    head = plain.partition("<")[0].partition("(")[0]
    inner = next((word for word in ("Functor", "Kernel", "_kernel") if word in plain[len(head) :]), "")
    if inner and "elementwise" in head:
        words = re.split(r"[<>,( ]+", plain)
        what = next((w.rpartition("::")[2] for w in words[1:] if inner in w), "")
        return f"{head.rpartition('::')[2]}<{what}>"
    return head.rpartition("::")[2] if "Mem" not in head else plain.partition(" (")[0]
