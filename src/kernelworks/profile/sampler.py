"""What the program's own thread did between two ops: Python, native code outside torch, waiting, or another thread's.

torch's profiler knows ops only. So the program is run once more under the profiler while a second thread looks at the
first, some thousand times a second. It sleeps, and then wants the interpreter's lock; what it finds says what the
program was doing:

- the lock is free at once: the program is in native code that gave the lock away (a product of numpy's, a read, a
  sleep). The kernel says whether its thread runs or sleeps.
- the lock comes when the interpreter switches threads: the program runs Python.
- the lock comes much later: the program is in native code that keeps the lock (a sort, most C extensions).

A look that would say something else without the time for which the two threads had no core says nothing. A call of
native code shorter than ``SHORT_S`` that keeps the lock looks like Python. The looks ask for nothing of the program's
frames: a thread that does so while another runs a coroutine leaves CPython 3.11 in a state in which transforms of
torch.func fail ever after.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelworks.profile.recording import record
from kernelworks.profile.trace import Trace

__all__ = ["NATIVE", "OTHER_THREADS", "WAITING", "GapBreakdown", "Look", "break_down_gaps", "watch_program"]

PYTHON, NATIVE, WAITING, OTHER_THREADS = "python", "native", "waiting", "others"
NAP_S = 0.0005
SWITCH_S = 0.001  # The interpreter's switch interval while it is sampled; usually it is 5 ms.
SHORT_S = 2.5 * SWITCH_S
LONG_S = 0.002  # Gaps from this length on are judged each by itself, shorter ones together.
SURE_S = 5e-5  # A look so soon after an op may have got its lock inside the op.
LEAST_LOOKS = 5  # Short gaps need so many looks before any of them counts.
LEAST_S, MOST_RUNS = 0.3, 20  # Short programs are sampled again until something was seen.
WORKING = 0.25  # Other threads are said to work from this share of a core on.


@dataclass(frozen=True)
class Look:
    """One look at the program's thread. Times in ns on the profiler's clock; ``others`` is CPU time of other threads
    since the look before."""

    since: int
    at: int
    late: int  # that the lock came after it was wanted
    delayed: int  # for how long, since the look before, one of the two threads could have run and had no core
    asleep: bool
    others: int
    alone: bool  # no other thread of the program runs Python

    @property
    def kind(self) -> str | None:
        """What the program was doing, None if that cannot be told."""
        if self.late - self.delayed > SHORT_S * 1e9:
            return NATIVE
        if self.late > SWITCH_S * 0.5e9:
            return PYTHON if self.delayed < SWITCH_S * 0.5e9 else None
        if not self.asleep:
            return NATIVE
        working = self.others > WORKING * (self.at - self.since)
        if working:
            return NATIVE if self.alone else OTHER_THREADS  # native code has threads of its own
        return WAITING


@dataclass
class GapSamples:
    """Seconds of some gaps, and of them those that were told, by kind, with how many looks told it.

    A look between two ops that are near each other falls on Python hardly ever: the lock is given away at the next op.
    So for short gaps what was told is a share of their time, of long ones a share of what was told.
    """

    short: bool = False
    told: float = 1.0  # of all time, what looks could tell
    seconds: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)
    looks: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, seconds: float) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0.0) + seconds
        self.looks[kind] += 1

    def share(self, kind: str) -> float:
        """Of these gaps, at most 1 for all kinds together."""
        if self.short and self.looks[kind] < LEAST_LOOKS:
            return 0.0
        total = sum(self.kinds.values())
        whole = max(total, self.seconds * self.told) if self.short else total
        return self.kinds.get(kind, 0.0) / whole if whole else 0.0


@dataclass(frozen=True)
class GapBreakdown:
    """What gaps were made of: the long ones each by its number, all others together; and what other threads did."""

    long: Mapping[int, GapSamples]
    short: GapSamples
    elsewhere: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # op -> calls, seconds, of other threads

    def of(self, gap: int) -> GapSamples:
        return self.long.get(gap, self.short)


def watch_program(run: Callable[[], Any]) -> tuple[list[Trace], list[list[Look]]]:
    """Runs the program under the profiler, every thread of it, and looks at it; short programs several times."""
    traces: list[Trace] = []
    looks: list[list[Look]] = []
    begin = time.perf_counter()
    while not traces or (time.perf_counter() - begin < LEAST_S and len(traces) < MOST_RUNS):
        watcher = _Watcher()

        def whole(watcher: _Watcher = watcher) -> Any:
            with watcher.looking():
                return run()

        trace = record(whole, every_thread=True)
        trace.output = None
        traces.append(trace)
        looks.append(watcher.looks_on(trace))
    return traces, looks


def break_down_gaps(traces: Sequence[Trace], looks: Sequence[Sequence[Look]], names: Sequence[str]) -> GapBreakdown:
    """The looks by gap. ``names`` are the calls of the timeline; gap ``i`` comes before call ``i``. If a watched run
    made other calls, all its gaps count together."""
    long: dict[int, GapSamples] = {}
    short = GapSamples(short=True)
    looked = told = 0.0
    elsewhere: dict[str, tuple[int, float]] = {}
    for trace, seen in zip(traces, looks, strict=True):
        for op, (calls, seconds) in trace.others.items():
            before = elsewhere.get(op, (0, 0.0))
            elsewhere[op] = (before[0] + calls, before[1] + seconds)
        same = [call.name for call in trace.calls] == list(names)
        starts = [trace.start, *(call.end for call in trace.calls)]
        ends = [*(call.start for call in trace.calls), trace.end]
        found = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            at = long.setdefault(number, GapSamples()) if same and end - start >= LONG_S * 1e9 else short
            at.seconds += max(0, end - start) / 1e9
            found.append(at)
        for look in seen:
            kind, gap = look.kind, bisect.bisect_right(starts, look.at) - 1
            looked += look.at - look.since
            if kind is None:
                continue
            told += look.at - look.since
            if gap < 0 or look.at > ends[gap]:
                continue
            if not found[gap].short or (look.delayed < SURE_S * 1e9 and look.at - starts[gap] > SURE_S * 1e9):
                found[gap].add(kind, (look.at - max(look.since, starts[gap])) / 1e9)
    short.told = told / looked if looked else 1.0
    runs = max(1, len(traces))
    return GapBreakdown(long, short, {op: (round(calls / runs), s / runs) for op, (calls, s) in elsewhere.items()})


class _Watcher:
    """The second thread."""

    def __init__(self) -> None:
        self.main, self.task = threading.get_ident(), threading.get_native_id()
        self.begun = self.ended = 0
        self.raw: list[Look] = []  # on the clock of perf_counter
        self._stop = False

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        before = sys.getswitchinterval()
        thread = threading.Thread(target=self._look, name="kernelworks watch", daemon=True)
        sys.setswitchinterval(SWITCH_S)
        thread.start()
        self.begun = time.perf_counter_ns()
        try:
            yield
        finally:
            self.ended = time.perf_counter_ns()
            self._stop = True
            thread.join()
            sys.setswitchinterval(before)

    def looks_on(self, trace: Trace) -> list[Look]:
        """The looks on the clock of the profiler, which saw the run begin and end at the same moments."""
        scale = (trace.end - trace.start) / max(1, self.ended - self.begun)

        def there(ns: int) -> int:
            return trace.start + round((ns - self.begun) * scale)

        return [dataclasses.replace(look, since=there(look.since), at=there(look.at)) for look in self.raw]

    def _look(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                state, own = (_Task(task) for task in (self.task, threading.get_native_id()))
                stack.callback(state.close)
                stack.callback(own.close)
            except OSError:  # not Linux: nothing is seen, all is called Python
                return
            clock = time.pthread_getcpuclockid(self.main)
            before, delay = time.perf_counter_ns(), own.delay() + state.delay()
            cpu = time.process_time_ns() - time.clock_gettime_ns(clock) - time.thread_time_ns()
            while not self._stop:
                napped = time.perf_counter_ns()
                time.sleep(NAP_S)
                at = time.perf_counter_ns()
                asleep, delayed = state.asleep(), own.delay() + state.delay()
                others = time.process_time_ns() - time.clock_gettime_ns(clock) - time.thread_time_ns()
                late = at - napped - round(NAP_S * 1e9)
                alone = threading.active_count() <= 2  # the program's thread and this one
                self.raw.append(Look(before, at, late, delayed - delay, asleep, others - cpu, alone))
                before, delay, cpu = at, delayed, others


class _Task:
    """What the kernel says of one thread of this process."""

    def __init__(self, number: int) -> None:
        self._stat = os.open(f"/proc/self/task/{number}/stat", os.O_RDONLY)
        self._schedstat = os.open(f"/proc/self/task/{number}/schedstat", os.O_RDONLY)

    def asleep(self) -> bool:
        return os.pread(self._stat, 512, 0).rpartition(b")")[2].split()[0] in (b"S", b"D")

    def delay(self) -> int:
        """ns that it could have run and had no core."""
        return int(os.pread(self._schedstat, 64, 0).split()[1])

    def close(self) -> None:
        os.close(self._stat)
        os.close(self._schedstat)
