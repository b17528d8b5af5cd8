"""One undisturbed run of a program, in words that fit every device: what each call took, what was between calls, and
how long other calls would take in their place.

A run is a host that does one thing after another, and streams that work behind it (``replay``). On a CPU that is the
same with one stream that the host waits for at every call: a call's seconds are the host's, and nothing overlaps.
"""

from __future__ import annotations

import abc
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kernelworks.measure.clock.noise import QUIET, WINDOW_S, Noise
from kernelworks.measure.clock.page_faults import minor_faults
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.gc_pauses import Collections
from kernelworks.profile.inductor.compiled_graphs import CompiledGraph
from kernelworks.profile.recording import record
from kernelworks.profile.replay import LAUNCH, PYTHON, SYNC, Gap, Job, Pace, Step, play, short
from kernelworks.profile.sampler import GapBreakdown
from kernelworks.profile.trace import Call, Trace, join

__all__ = [
    "NO_PAGES",
    "PATIENCE",
    "UNKNOWN",
    "CallRun",
    "Cost",
    "Pages",
    "PlainRun",
    "Timeline",
    "first_run",
    "plain_run",
    "plain_walls",
    "profile_run",
    "survey_all_calls",
    "survey_limit",
    "survey_run",
    "window_s",
]  # fmt: skip

Say = Callable[[str], None]

ENDLESS_S = 60  # A first run that takes longer is reported.
LEAST_SURVEYED = 2048  # At least so many calls are surveyed.
SURVEY_S = 250e-6  # One surveyed call costs this: to record, to read, to sort.
WINDOWS = 0.05  # A window of short plain runs takes at most this share of the budget.
UNKNOWN = "kernels outside any op"
PATIENCE = 0.3  # After this share of the budget no quieter window is waited for.


# ---------------------------------------------------------------- what a run was made of


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one call takes the host, and its kernels the device. ``waits``: the host waits for the device."""

    host: float
    kernels: tuple[float, ...] = ()
    waits: bool = False

    def at(self, pace: float) -> Cost:
        """The same if all takes ``pace`` times as long."""
        return Cost(self.host * pace, tuple(seconds * pace for seconds in self.kernels), self.waits)


@dataclass(slots=True)
class CallRun:
    """One call as it ran. Seconds: ``before`` is what the host did between the call before and this one, ``seconds``
    for how long work was done for it, ``exclusive`` those of them in which nothing before it was still running,
    ``critical`` those on the critical path.
    """

    call: Call
    before: float = 0.0
    host: float = 0.0
    seconds: float = 0.0
    exclusive: float = 0.0
    critical: float = math.inf
    waits: bool = False
    jobs: list[Job] = field(default_factory=list)  # that it gave the device
    kernels: list[float] = field(default_factory=list)  # seconds of each of them
    entry: float = 0.0  # of ``before``, what any call takes
    released: float = 0.0  # of ``before``, memory given back
    fresh: float = 0.0  # of ``seconds``, fresh pages
    least: float = 0.0  # what a call of torch of so many parts takes, whatever its work

    @property
    def has_work(self) -> bool:
        """Whether anything ran for it: a call that gives a GPU nothing is the host's time alone, between kernels."""
        return self.critical > 0 or bool(self.jobs)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its kernels, in short."""
        return tuple(dict.fromkeys(short(job.name) for job in self.jobs))

    @property
    def cost(self) -> Cost:
        return Cost(self.host, tuple(self.kernels), self.waits)


@dataclass(frozen=True)
class Pages:
    """Seconds for each page fault that a survey saw in a call, and for giving a whole run's pages back."""

    each: float
    back: float


NO_PAGES = Pages(0.0, 0.0)
AT_ONCE = Pace(0.0, 0.0)  # what the host asks for begins


@dataclass(frozen=True, kw_only=True)
class Timeline(abc.ABC):
    """One run; ``wall`` is plain, in seconds, the median of ``walls``. Its calls and gaps add to it."""

    wall: float
    walls: tuple[float, ...] = ()
    persistent: dict[int, int] = field(default_factory=dict)  # storages of parameters and buffers, and their bytes
    elsewhere: int = 0  # ops on other threads
    noisy: int = 0  # windows of runs that were thrown away because others used the machine
    noise: Noise = QUIET  # of the windows that were kept
    loud: bool = False  # no window was quiet
    surveyed: int | None = None  # how many calls were surveyed, for all others like them; None if all were
    outside: GapBreakdown | None = None  # what the gaps were made of; None if nothing was asked
    unwatched: bool = False  # that was not asked, as the budget was over
    looking_s: float = 0.0  # that one run took longer because it was looked at, and for reading what was seen
    taken: float = 0.0  # seconds of a run for which its threads had no core, because others had them
    pace: Pace = AT_ONCE
    compiled: tuple[CompiledGraph, ...] = ()  # the graphs of torch.compile that ran
    broken: tuple[tuple[str, str], ...] = ()  # where graphs broke: line, reason
    recompiled: tuple[tuple[str, str, int, float], ...] = ()  # line, guard, how often, seconds
    collected: float = 0.0  # seconds of ``wall`` in full collections of garbage

    # What the profiler slows here, and by which share profiled and plain runs may differ before it is said.
    slowed: ClassVar[str] = "the program"
    may_differ: ClassVar[float] = 0.15

    @property
    @abc.abstractmethod
    def calls(self) -> Sequence[Call]:
        """The program's calls in order."""

    @property
    @abc.abstractmethod
    def tail(self) -> float:
        """Seconds of the host after the last call, and after the device has done all it was given."""

    @property
    @abc.abstractmethod
    def profiler_slowdown(self) -> float:
        """How many times as long a profiled run took, what is known to be the profiler's own taken off."""

    @abc.abstractmethod
    def entries(self) -> list[CallRun]:
        """Each call as it ran, in the order of the program. Device work outside any call comes last, as calls of that
        name (``UNKNOWN``)."""

    @abc.abstractmethod
    def gaps(self) -> list[Gap]:
        """The time in which nothing ran for a call, by cause: with what the entries have alone it adds to the wall."""

    def pages(self, calls: Sequence[Call], freed: int, faults: int | None) -> Pages:
        """What a run of these surveyed calls pays for fresh pages, of which it takes ``faults`` when it runs plain, and
        for giving back ``freed`` bytes at its end. Nothing if the wall clock does not show it."""
        return NO_PAGES

    @property
    def own_pages(self) -> Pages:
        """Those of this run itself."""
        return NO_PAGES

    def replay(self, costs: Iterable[tuple[float, Cost]], pace: float = 1.0) -> float:
        """Seconds of a run of other calls: of each what the host does before it, and what it takes. ``pace`` is by how
        much longer the end of this run takes today."""
        program: list[Step] = []
        for before, cost in costs:
            jobs = tuple(Job("", seconds, 0, None) for seconds in cost.kernels)
            program.append(Step(PYTHON, before))
            program.append(Step(SYNC if cost.waits else LAUNCH, cost.host, None, jobs, cost.waits))
        program.append(Step(SYNC, self.tail * pace, waits=True))
        return play(program, self.pace).wall


# ---------------------------------------------------------------- running a program to see it


@dataclass(frozen=True)
class PlainRun:
    """One run without the profiler: seconds, minor page faults, and the seconds of full collections of garbage."""

    wall: float
    faults: int
    collected: float = 0.0


def plain_run(run: Callable[[], Any]) -> PlainRun:
    with Collections() as collections:
        faults = minor_faults()
        start = time.perf_counter()
        run()
        wall = time.perf_counter() - start
    return PlainRun(wall, minor_faults() - faults, collections.seconds)


def first_run(run: Callable[[], Any], say: Say) -> PlainRun:
    """The run that warms up, and in which a program that cannot be run says so. One that does not end is told of."""
    say("warming up: the program's first run")
    waiting = threading.Timer(
        ENDLESS_S, say, (f"warming up: {ENDLESS_S} s, and the program's first run has not ended",)
    )
    waiting.daemon = True
    waiting.start()
    try:
        return plain_run(run)
    finally:
        waiting.cancel()


def profile_run(run: Callable[[], Any]) -> Trace:
    """One run under the profiler, names and times alone; what the program returns is let go."""
    trace = record(run)
    trace.output = None
    return trace


def survey_run(run: Callable[[], Any], most: float) -> tuple[Trace, dict[int, int]]:
    """One run in which the first ``most`` calls are looked at, and the storages that outlive it."""
    survey = Survey(most)
    trace = record(run, survey=survey)
    trace.output = None
    return trace, survey.persistent


def survey_all_calls(run: Callable[[], Any], most: float) -> tuple[Trace, dict[int, int]]:
    """As ``survey_run``, with every call: those that were not looked at are taken for others of the same names."""
    trace, persistent = survey_run(run, most)
    if trace.cut:
        trace.calls = join(profile_run(run), trace)
    return trace, persistent


def survey_limit(budget_s: float, wall: float) -> float:
    """How many calls are looked at, of a program that takes ``wall`` seconds."""
    return max(LEAST_SURVEYED, max(budget_s, wall) / SURVEY_S)


def window_s(budget_s: float) -> float:
    """For how long short runs are repeated: what others did meanwhile is known in ticks of 10 ms."""
    return min(WINDOW_S, WINDOWS * budget_s)


def plain_walls(samples: Sequence[PlainRun]) -> tuple[float, tuple[float, ...]]:
    """Their median, and all of them."""
    walls = tuple(sample.wall for sample in samples)
    return statistics.median(walls), walls
