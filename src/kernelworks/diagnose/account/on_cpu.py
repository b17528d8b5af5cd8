"""The CPU under diagnosis: what the parts of its wall clock are called, and what its account and its forecasts ask.

The parts beside everyone's (``account``), in the order of the time breakdown:

- **dispatch**: the floor of a call into torch for every op and for what it calls, in Python and in C++, all the time
  of ops that move no data, and that of ops whose work is less than one such floor;
- **Python overhead (host)**: the program's own Python between ops, beyond that floor;
- **native code outside torch**: between ops, NumPy's kernels say: not modelled;
- **kernels of its own**: in operators of the program's own, or of another package's: not modelled;
- **waiting**: between ops, the program's thread asleep: for a file, a lock, a clock;
- **input (DataLoader)**, **communication**, **compiling (torch.compile)**: what torch says is that (``apart``);
- **other threads**: between ops, the program's thread asleep while other threads of the program worked;
- **Python and framework, not attributed**: Python, native code or waiting between ops, if the budget was over before
  they were told apart;
- **CPU contention**: the program's threads could have run, but other processes had the cores;
- **allocation (page faults)**: fresh pages touched inside ops, and large blocks given back between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelworks.diagnose.account.account import ALLOCATION, COMPUTE, MEMORY, UNEXPLAINED, USEFUL, WITHOUT_PEAKS
from kernelworks.diagnose.account.limits import limit
from kernelworks.diagnose.forecast.device import REACHED_SHARE, Device
from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.isolated_on_cpu import Capture, time_isolated
from kernelworks.diagnose.forecast.races import Races
from kernelworks.measure.clock.page_faults import Memory
from kernelworks.measure.roofline.bound import Bound
from kernelworks.profile import on_cpu, replay, sampler
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import work
from kernelworks.profile.non_compute import COMMUNICATION, COMPILING, CUSTOM_KERNELS, INPUT
from kernelworks.profile.timeline import CallRun, Cost, PlainRun, Timeline
from kernelworks.profile.trace import Call
from kernelworks.records import Peaks
from kernelworks.records.wall_clocks import CONTENTION

__all__ = ["FREE", "NATIVE", "OTHERS", "PARTS", "PREEMPTION", "PYTHON", "UNSEEN", "UNWATCHED_TIME", "WAITING", "Cpu"]

DISPATCH, HOST = "dispatch", "Python overhead (host)"
NATIVE, WAITING, OTHERS = "native code outside torch", "waiting", "other threads"
UNWATCHED_TIME = "Python and framework, not attributed"
PREEMPTION = CONTENTION
UNSEEN = frozenset({NATIVE, WAITING, OTHERS, UNWATCHED_TIME, PREEMPTION, COMMUNICATION})  # no model covers these
PARTS = (
    USEFUL, MEMORY, COMPUTE, WITHOUT_PEAKS, DISPATCH, HOST, NATIVE, CUSTOM_KERNELS, WAITING, INPUT, COMMUNICATION,
    COMPILING, OTHERS, UNWATCHED_TIME, PREEMPTION, ALLOCATION, UNEXPLAINED,
)  # fmt: skip

PYTHON, FREE = "python", "free memory"  # the hotspots of gaps have these names
GAPS = {
    replay.PYTHON: (PYTHON, HOST, "host"), replay.ALLOCATION: (FREE, ALLOCATION, "allocation"),
    sampler.NATIVE: (NATIVE, NATIVE, "native"), sampler.WAITING: (WAITING, WAITING, "waiting"),
    sampler.OTHER_THREADS: (OTHERS, OTHERS, "threads"), on_cpu.PREEMPTION: (PREEMPTION, PREEMPTION, "contention"),
    COMMUNICATION: (COMMUNICATION, COMMUNICATION, "communication"),
    on_cpu.UNWATCHED_TIME: (UNWATCHED_TIME, UNWATCHED_TIME, "not attributed"),
}  # fmt: skip
GRAIN = 32768  # torch's elementwise kernels use several threads from so many elements on


@dataclass(frozen=True)
class Cpu(Device):
    """This machine's cores, with so many threads."""

    peaks: Peaks
    threads: int

    parts: ClassVar[tuple[str, ...]] = PARTS
    overhead: ClassVar[str] = DISPATCH
    gaps: ClassVar[Mapping[str, tuple[str, str, str]]] = GAPS
    unseen: ClassVar[frozenset[str]] = UNSEEN
    most_rounds: ClassVar[int] = 5
    fixing: ClassVar[float] = 0.25
    takes_pages: ClassVar[bool] = True

    @property
    def told_parts(self) -> tuple[str, ...]:
        """Without measured peaks there is no part above or below them: what is unknown is not 0."""
        absent = (USEFUL, MEMORY, COMPUTE) if self.peaks.unknown else (WITHOUT_PEAKS,)
        return tuple(part for part in self.parts if part not in absent)

    @property
    def cache_bytes(self) -> int:
        return self.peaks.cache_bytes.get("L3", 32 << 20)

    @property
    def floor(self) -> float:
        return self.peaks.dispatch_us * 1e-6

    def limit(self, ran: CallRun, its: Work, far: float) -> Bound | None:
        return None if self.peaks.unknown else limit(its, far, self.threads, self.peaks)

    def overheads(self, ran: CallRun, its: Work) -> Iterable[tuple[str, float]]:
        wide = its.written >= GRAIN * 4 and self.threads > 1
        yield ALLOCATION, ran.fresh
        yield DISPATCH, ran.least + (self.peaks.fork_join_us * 1e-6 if wide else 0.0)

    def observe(self, run: Callable[[], Any], budget_s: float, say: Callable[[str], None], **more: Any) -> Timeline:
        first: PlainRun | None = more.get("first")
        memory: Memory | None = more.get("memory")
        return on_cpu.observe(run, self.floors, budget_s=budget_s, say=say, first=first, memory=memory)

    def races(self, budget_s: float, say: Callable[[str], None] | None) -> Races:
        return Races(budget_s, self.threads, say=say)

    def capture(self, persistent: Mapping[int, int], budget_s: float) -> Capture:
        return Capture(persistent, budget_s)

    def isolated_costs(self, calls: Sequence[Call], capture: Any, budget_s: float) -> IsolatedCosts:
        found = time_isolated(capture.captured, budget_s)
        capture.captured.clear()
        return found

    def at_its_bound(self, call: Call, host: float) -> Cost:
        its = work(call)
        if self.peaks.unknown:  # as long as it takes today
            return Cost(max(0.0, (call.end - call.start) / 1e9))
        bound = limit(its, 0.0, self.threads, self.peaks).seconds if its is not None else 0.0
        return Cost(max(bound / REACHED_SHARE, self.floors.span * call.events))

    def give_back(self) -> None:
        gc.collect()
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
