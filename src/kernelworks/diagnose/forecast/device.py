"""What a device brings to a diagnosis: its measured peaks for the account, and its ways to observe and to forecast."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.races import Races
from kernelworks.measure.roofline.bound import Bound
from kernelworks.profile.cost import Work
from kernelworks.profile.overhead import Floors
from kernelworks.profile.timeline import CallRun, Cost, Timeline
from kernelworks.profile.trace import Call
from kernelworks.records import GpuPeaks, GpuTime, Peaks

__all__ = ["REACHED_SHARE", "Device"]

REACHED_SHARE = 0.6  # a call that nothing was timed like is taken to reach this share of its bound


@dataclass(frozen=True)
class Device(abc.ABC):
    peaks: Peaks | GpuPeaks
    floors: Floors

    parts: ClassVar[tuple[str, ...]]  # of the time breakdown, in order
    overhead: ClassVar[str]  # the part of calls that do less work than it takes to make them
    gaps: ClassVar[Mapping[str, tuple[str, str, str]]]  # cause of a gap -> name of its hotspot, part, bottleneck
    unseen: ClassVar[frozenset[str]] = frozenset()  # parts that no model covers
    most_rounds: ClassVar[int]  # a measurement in alternation has at most so many rounds
    fixing: ClassVar[float]  # each step of a fix before its measurement may take this share of the budget
    takes_pages: ClassVar[bool] = False  # whether a program's page faults are part of its wall clock

    # ---------------------------------------------------------------- what an account asks

    @property
    def told_parts(self) -> tuple[str, ...]:
        """The parts that this diagnosis can tell apart."""
        return self.parts

    @property
    @abc.abstractmethod
    def cache_bytes(self) -> int:
        """Of the last cache."""

    @property
    @abc.abstractmethod
    def floor(self) -> float:
        """Seconds of a dispatch or a launch."""

    def unit(self, its: Work) -> Work:
        """The work on the unit that does it."""
        return its

    @abc.abstractmethod
    def limit(self, ran: CallRun, its: Work, far: float) -> Bound | None:
        """The least time of the work, with ``far`` of its input bytes from beyond the last cache. None if the measured
        peaks are unknown."""

    def bare(self, ran: CallRun) -> str:
        """The part of a call that moves no data."""
        return self.overhead

    @abc.abstractmethod
    def overheads(self, ran: CallRun, its: Work) -> Iterable[tuple[str, float]]:
        """What a call takes beside its work, by part, in the order in which it is taken off."""

    def fusible_shares(self, calls: Sequence[Call], works: Sequence[Work | None]) -> Sequence[float]:
        """For each call the share of its bytes that one kernel for two of them would not move, if that is told."""
        return [0.0] * len(calls)

    # ---------------------------------------------------------------- a diagnosis

    @abc.abstractmethod
    def observe(self, run: Callable[[], Any], budget_s: float, say: Callable[[str], None], **more: Any) -> Timeline:
        """One undisturbed run. ``more``: the ``first`` run, and the ``memory`` that may be kept, on a CPU."""

    @abc.abstractmethod
    def races(self, budget_s: float, say: Callable[[str], None] | None) -> Races:
        """What is asked which kernels a swap would take, and how much they gain."""

    def device_findings(self, timeline: Timeline) -> tuple[GpuTime | None, tuple[str, ...]]:
        """What this device alone has to tell: times and findings."""
        return None, ()

    # ---------------------------------------------------------------- a forecast

    def with_sync(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The program, over when the device is done."""
        return run

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        """The most bytes of tensors that a run has on the device at once; None if that is not known."""
        return None

    @abc.abstractmethod
    def capture(self, persistent: Mapping[int, int], budget_s: float) -> Any:
        """A context in which the swapped program runs once more: what ``isolated_costs`` wants to know of our calls."""

    @abc.abstractmethod
    def isolated_costs(self, calls: Sequence[Call], capture: Any, budget_s: float) -> IsolatedCosts:
        """What the calls of ours among these take by themselves."""

    @abc.abstractmethod
    def at_its_bound(self, call: Call, host: float) -> Cost:
        """What a call costs that nothing was timed like: as long as its kernel is expected to take, if there is a
        model of it, else its bound over ``REACHED_SHARE``. Calls like it take the host ``host``."""

    @abc.abstractmethod
    def give_back(self) -> None:
        """Gives back the memory that nothing holds."""
