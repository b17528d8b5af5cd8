"""One rung after the other, on whatever device: built, verified, benchmarked, and looked into. What the CPU and a GPU
do each in their own way is in ``on_cpu`` and ``on_gpu``."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import BuildError
from kernelworks.build.launcher import LaunchError
from kernelworks.climb.judge import GuardedTensor, ReferenceCase
from kernelworks.climb.ladder import Ladder, Rung
from kernelworks.climb.problem import Inputs, Size
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records.climb import RungResult, RungTime

__all__ = [
    "MATRIX_PIPE",
    "MULTIPLY_ADDS",
    "PEAK",
    "PREVIOUS_RUNG",
    "THIS_RUNG",
    "Climber",
    "DeviceStopped",
    "Evidence",
    "bottleneck",
    "size_text",
    "unmeasured_result",
]

MULTIPLY_ADDS, PEAK, THIS_RUNG, PREVIOUS_RUNG = "multiply-adds", "peak", "this rung", "rung before"
MATRIX_PIPE = "matrix units' cycles"  # counted, at the clock that the power limit left
EXPLAINED_SHARE = 0.6  # of the time: from here on the largest term names the bottleneck
BASELINE_TOLERANCE = 16.0  # times the bound: what a baseline may be off by and still be the same computation


class DeviceStopped(RuntimeError):
    """The device went down with a rung: nothing more can be run in this process."""


@dataclass
class Evidence:
    assembly: tuple[str, ...] = ()
    launch: dict[str, int] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    instructions: dict[str, int] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)


def size_text(size: Size) -> str:
    return ", ".join(f"{name} {value}" for name, value in size.items())


def threads_text(threads: int) -> str:
    """ ", 2 threads" after a size; nothing on a GPU."""
    return f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""


def _of_threads(maker: Callable[..., Any], threads: int) -> Callable[..., Any]:
    return lambda given: maker(given, threads)


@dataclass
class Climber(ABC):
    """``beat(what)`` is called whenever something new begins, so that whoever waits knows that it is alive."""

    ladder: Ladder
    size: Size
    known: Peaks | GpuPeaks
    budget_s: float  # of a race, for each variant
    watch: bool  # the other processes' use of the cores
    rough: bool = False  # time all the same where they use them, and say so
    beat: Callable[[str], None] = lambda what: None
    notes: list[str] = field(default_factory=list)
    reference_cases: dict[tuple[Any, ...], ReferenceCase] = field(default_factory=dict)

    # ------------------------------------------------ what each device does in its own way

    @abstractmethod
    def missing_reason(self, rung: Rung) -> str:
        """Why the rung cannot run on this machine."""

    @abstractmethod
    def call(self, rung: Rung, size: Size, given: Inputs, out: Tensor, threads: int) -> Callable[[], Tensor]:
        """A call of the rung. Raises BuildError."""

    @abstractmethod
    def race(self, rung: Rung, before: Rung | None, size: Size, threads: int) -> RungTime:
        """Raises Ambiguous, and ArithmeticError where the rung was wrong while it was timed."""

    @abstractmethod
    def evidence(self, rung: Rung) -> Evidence: ...

    @abstractmethod
    def shares(self, rung: Rung, timed: RungTime) -> dict[str, float]:
        """The share of the rung's time that each measured peak explains."""

    @abstractmethod
    def counts(self, rung: Rung) -> list[int]:
        """Thread counts, least first."""

    def post_call_error(self, rung: Rung) -> str:
        """What is wrong after a call beside the output: of what only this device has."""
        return ""

    # ------------------------------------------------ verification

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def reference_case(self, size: Size, format_name: str) -> ReferenceCase:
        key = (*size.values(), format_name)
        if key not in self.reference_cases:
            self.reference_cases[key] = ReferenceCase.of(
                self.ladder.problem, size, format_name, seed=len(self.reference_cases)
            )
        return self.reference_cases[key]

    def timed_size(self, rung: Rung) -> Size:
        rows = self.ladder.problem.rows
        if not rung.rows or not rows:
            return self.size
        return self.size | {rows: min(rung.rows, self.size[rows])}

    def sizes(self, rung: Rung) -> list[Size]:
        """What the rung is timed at."""
        last = rung.number == self.ladder.rungs[-1].number and self.size == self.ladder.problem.size
        return [self.timed_size(rung), *(self.ladder.problem.also if last else ())]

    def verify_rung(self, rung: Rung) -> tuple[float, str, int]:
        """The worst error as a share of the bound over all sizes and thread counts, what is wrong, and how many sizes
        were left out because the rung asks for multiples."""
        worst, skipped = 0.0, 0
        for size in (*self.ladder.problem.verification_sizes, *self.sizes(rung)):
            if not rung.takes(size):
                if size in self.sizes(rung):
                    return worst, f"{size_text(size)} is timed, and the rung does not take it", skipped
                skipped += 1
                continue
            self.beat(f"verifying at {size_text(size)}")
            reference_case = self.reference_case(size, rung.format)
            for threads in self.counts(rung):
                share, wrong = self._tried(rung, reference_case, threads)
                worst = max(worst, share)
                if wrong:
                    return worst, f"{size_text(size)}{threads_text(threads)}: {wrong}", skipped
        return worst, "", skipped

    def _tried(self, rung: Rung, reference_case: ReferenceCase, threads: int) -> tuple[float, str]:
        """Twice the same call: a difference between the two is a data race, however small the error."""
        problem = self.ladder.problem
        held = [GuardedTensor(problem.shape(reference_case.size), problem.dtype, problem.device) for _ in range(2)]
        for each in held:
            self.call(rung, reference_case.size, reference_case.given, each.out, threads)()
        share, wrong = reference_case.judge(held[0].out)
        if not wrong and any(each.has_overrun() for each in held):
            wrong = "wrote outside its output"
        if not wrong and not reference_case.has_unchanged_inputs():
            wrong = "changed its inputs"
        if not wrong and not torch.equal(held[0].out, held[1].out):
            wrong = "gave two different results for the same inputs: a data race"
        return share, wrong or self.post_call_error(rung)

    # ------------------------------------------------ one rung

    def baselines(
        self, size: Size, format_name: str, threads: int
    ) -> dict[str, Callable[[Inputs], Callable[[], Tensor]]]:
        """By name, what makes a baseline's call: of every baseline that runs here and computes the same."""
        reference_case, found = (
            self.reference_case(size, format_name),
            dict[str, Callable[[Inputs], Callable[[], Tensor]]](),
        )
        for name, maker in self.ladder.problem.baselines_of(format_name).items():
            call = maker(reference_case.given, threads)
            if call is None:
                self.note(f"{name} does not run here")
                continue
            share, wrong = reference_case.judge(call())
            if share > BASELINE_TOLERANCE:
                self.note(f"{name} is left out, its result is wrong: {wrong}")
                continue
            if wrong:
                self.note(f"{name} is benchmarked, though its largest error is {share:.3g} times the bound of a rung's")
            found[name] = _of_threads(maker, threads)
        return found

    def climb_rung(self, rung: Rung, before: Rung | None) -> RungResult:
        status, reason, worst, skipped = "verified", "", None, 0
        times, evidence = list[RungTime](), Evidence()
        missing = self.missing_reason(rung)
        try:
            if missing:
                status, reason = "not run", missing
            else:
                worst, wrong, skipped = self.verify_rung(rung)
                if wrong:
                    status, reason = "wrong", wrong
                else:
                    evidence = self.evidence(rung)
                    times = self._times(rung, before)
        except (BuildError, torch.OutOfMemoryError) as error:
            status, reason = "not run", str(error)
        except LaunchError as error:
            status, reason, times = "wrong", str(error), []
        except Ambiguous as error:
            status, reason, times = "ambiguous", str(error).removeprefix("ambiguous: "), []
        except ArithmeticError as error:
            status, reason, times = "wrong", str(error), []
        judged = [t for t in times if t.size == self.timed_size(rung)]
        last = judged[-1] if judged else None
        shares = self.shares(rung, last) if last else {}
        return dataclasses.replace(
            unmeasured_result(rung, status, reason), worst=worst, times=tuple(times),
            gain=last.rate / last.before if last and last.before and not last.rough else None, shares=shares,
            bottleneck=bottleneck(shares) if last else "", assembly=evidence.assembly, skipped=skipped,
            launch=evidence.launch, resources=evidence.resources, instructions=evidence.instructions,
            counters=evidence.counters,
        )  # fmt: skip

    def _times(self, rung: Rung, before: Rung | None) -> list[RungTime]:
        found = []
        for size in self.sizes(rung):
            here = size == self.timed_size(rung)
            for threads in self.counts(rung) if here else self.counts(rung)[-1:]:
                self.beat(f"timing at {size_text(size)}{threads_text(threads)}")
                found.append(self.race(rung, before if here else None, size, threads))
        return found


def unmeasured_result(rung: Rung, status: str, reason: str) -> RungResult:
    """What is known of a rung from its file, with nothing measured."""
    return RungResult(
        number=rung.number, file=rung.path.name, sha256=rung.sha256(), title=rung.title, target=rung.target,
        hypothesis=rung.hypothesis, next=rung.next, predicted=rung.predicts, status=status, reason=reason, worst=None,
        times=(), gain=None, loads=rung.loads, shares={}, bottleneck="", assembly=(), language=rung.language,
        format=rung.format, multiples=rung.multiples,
    )  # fmt: skip


def bottleneck(shares: dict[str, float]) -> str:
    """The largest share's name, where it explains enough of the time."""
    largest = max(shares, key=lambda name: shares[name], default="")
    if not largest or shares[largest] < EXPLAINED_SHARE:
        return "latency"
    return "compute" if largest in (MULTIPLY_ADDS, MATRIX_PIPE) else f"memory {largest}"
