"""What a device brings to a diagnosis: its measured roofs for the account, and its ways to observe and to forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from kernelworks.diagnose.account import Roofs
from kernelworks.diagnose.alone import Alone
from kernelworks.diagnose.predict import Bounds
from kernelworks.diagnose.races import Races
from kernelworks.observe.overhead import Floors
from kernelworks.observe.timeline import Timeline
from kernelworks.observe.trace import Call
from kernelworks.records import Ceilings, GpuCeilings, GpuTime

__all__ = ["Device"]


class Device(Roofs, Bounds, Protocol):
    @property
    def ceilings(self) -> Ceilings | GpuCeilings: ...

    @property
    def floors(self) -> Floors: ...

    most_rounds: ClassVar[int]  # of a measurement in alternation
    fixing: ClassVar[float]  # of the budget, for each of what a fix does before it is measured
    takes_pages: ClassVar[bool]  # whether a program's page faults are part of its wall clock

    def observe(self, run: Callable[[], Any], budget_s: float, say: Callable[[str], None], **more: Any) -> Timeline:
        """One undisturbed run. ``more``: the ``first`` run, and the ``memory`` that may be kept, on a CPU."""

    def races(self, budget_s: float, say: Callable[[str], None] | None) -> Races:
        """What is asked which rows a swap would take, and how much they bring."""

    def told(self, timeline: Timeline) -> tuple[GpuTime | None, tuple[str, ...]]:
        """What this device alone has to tell: times and findings."""

    def whole(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The program, over when the device is done."""

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        """The most bytes of tensors that a run has on the device at once; None where that is not known."""

    def capture(self, persistent: Mapping[int, int], budget_s: float) -> Any:
        """A context in which the swapped program runs once more: what ``alone`` wants to know of our calls."""

    def alone(self, calls: Sequence[Call], capture: Any, budget_s: float) -> Alone:
        """What the calls of ours among these take by themselves."""

    def give_back(self) -> None:
        """Gives back the memory that nothing holds."""
