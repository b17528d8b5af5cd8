"""One rung after the other, on whatever device: built, proved, raced, and looked into. What the CPU and a GPU do each
in their own way is in ``on_cpu`` and ``on_gpu``."""

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
from kernelworks.climb.judge import Guarded, Truth
from kernelworks.climb.ladder import Ladder, Rung
from kernelworks.climb.problem import Given, Size
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.records import Ceilings, GpuCeilings
from kernelworks.records.climb import RungResult, RungTime

__all__ = [
    "BEFORE",
    "CEILING",
    "HERE",
    "MATRIX_PIPE",
    "MULTIPLY_ADDS",
    "Climber",
    "Evidence",
    "Stopped",
    "regime",
    "sized",
    "unclimbed",
]

MULTIPLY_ADDS, CEILING, HERE, BEFORE = "multiply-adds", "ceiling", "this rung", "rung before"
MATRIX_PIPE = "matrix units' cycles"  # counted, at the clock that the power limit left
EXPLAINED = 0.6  # of the time: from here on the largest term names the regime
PEERS_OFF = 16.0  # times the bound: what a peer may be off by and still be the same computation


class Stopped(RuntimeError):
    """The device went down with a rung: nothing more can be run in this process."""


@dataclass
class Evidence:
    assembly: tuple[str, ...] = ()
    launch: dict[str, int] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    instructions: dict[str, int] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)


def sized(size: Size) -> str:
    return ", ".join(f"{name} {value}" for name, value in size.items())


def counted(threads: int) -> str:
    """ ", 2 threads" after a size; nothing on a GPU."""
    return f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""


def _of_threads(maker: Callable[..., Any], threads: int) -> Callable[..., Any]:
    return lambda given: maker(given, threads)


@dataclass
class Climber(ABC):
    """``beat(what)`` is called whenever something new begins, so that whoever waits knows that it is alive."""

    ladder: Ladder
    size: Size
    known: Ceilings | GpuCeilings
    budget_s: float  # of a race, for each arm
    watch: bool  # the other processes' use of the cores
    rough: bool = False  # time all the same where they use them, and say so
    beat: Callable[[str], None] = lambda what: None
    notes: list[str] = field(default_factory=list)
    truths: dict[tuple[Any, ...], Truth] = field(default_factory=dict)

    # ------------------------------------------------ what each device does in its own way

    @abstractmethod
    def missing(self, rung: Rung) -> str:
        """Why the rung cannot run on this machine."""

    @abstractmethod
    def call(self, rung: Rung, size: Size, given: Given, out: Tensor, threads: int) -> Callable[[], Tensor]:
        """A call of the rung. Raises BuildError."""

    @abstractmethod
    def race(self, rung: Rung, before: Rung | None, size: Size, threads: int) -> RungTime:
        """Raises Ambiguous, and ArithmeticError where the rung was wrong while it was timed."""

    @abstractmethod
    def evidence(self, rung: Rung) -> Evidence: ...

    @abstractmethod
    def shares(self, rung: Rung, timed: RungTime) -> dict[str, float]:
        """Of the rung's time, what each ceiling explains."""

    @abstractmethod
    def counts(self, rung: Rung) -> list[int]:
        """Thread counts, least first."""

    def after(self, rung: Rung) -> str:
        """What is wrong after a call beside the output: of what only this device has."""
        return ""

    # ------------------------------------------------ proof

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def truth(self, size: Size, form: str) -> Truth:
        key = (*size.values(), form)
        if key not in self.truths:
            self.truths[key] = Truth.of(self.ladder.problem, size, form, seed=len(self.truths))
        return self.truths[key]

    def timed_size(self, rung: Rung) -> Size:
        rows = self.ladder.problem.rows
        if not rung.rows or not rows:
            return self.size
        return self.size | {rows: min(rung.rows, self.size[rows])}

    def sizes(self, rung: Rung) -> list[Size]:
        """What the rung is timed at."""
        last = rung.number == self.ladder.rungs[-1].number and self.size == self.ladder.problem.size
        return [self.timed_size(rung), *(self.ladder.problem.also if last else ())]

    def proved(self, rung: Rung) -> tuple[float, str, int]:
        """The worst error as a share of the bound over all sizes and thread counts, what is wrong, and how many sizes
        were left out because the rung asks for multiples."""
        worst, skipped = 0.0, 0
        for size in (*self.ladder.problem.proof_sizes, *self.sizes(rung)):
            if not rung.takes(size):
                if size in self.sizes(rung):
                    return worst, f"{sized(size)} is timed, and the rung does not take it", skipped
                skipped += 1
                continue
            self.beat(f"proving at {sized(size)}")
            truth = self.truth(size, rung.format)
            for threads in self.counts(rung):
                share, wrong = self._tried(rung, truth, threads)
                worst = max(worst, share)
                if wrong:
                    return worst, f"{sized(size)}{counted(threads)}: {wrong}", skipped
        return worst, "", skipped

    def _tried(self, rung: Rung, truth: Truth, threads: int) -> tuple[float, str]:
        """Twice the same call: what moves between two is a race, however small the error."""
        problem = self.ladder.problem
        held = [Guarded(problem.shape(truth.size), problem.dtype, problem.device) for _ in range(2)]
        for each in held:
            self.call(rung, truth.size, truth.given, each.out, threads)()
        share, wrong = truth.judge(held[0].out)
        if not wrong and any(each.overrun() for each in held):
            wrong = "wrote outside its output"
        if not wrong and not truth.untouched():
            wrong = "changed its inputs"
        if not wrong and not torch.equal(held[0].out, held[1].out):
            wrong = "gave two different results for the same inputs: a race"
        return share, wrong or self.after(rung)

    # ------------------------------------------------ one rung

    def peers(self, size: Size, form: str, threads: int) -> dict[str, Callable[[Given], Callable[[], Tensor]]]:
        """By name, what makes a peer's call for given inputs: of every peer that runs here and computes the same."""
        truth, found = self.truth(size, form), dict[str, Callable[[Given], Callable[[], Tensor]]]()
        for name, maker in self.ladder.problem.peers_of(form).items():
            call = maker(truth.given, threads)
            if call is None:
                self.note(f"{name} does not run here")
                continue
            share, wrong = truth.judge(call())
            if share > PEERS_OFF:
                self.note(f"{name} is left out, its result is wrong: {wrong}")
                continue
            if wrong:
                self.note(f"{name} is raced, though its largest error is {share:.3g} times the bound of a rung's")
            found[name] = _of_threads(maker, threads)
        return found

    def one(self, rung: Rung, before: Rung | None) -> RungResult:
        status, reason, worst, skipped = "proved", "", None, 0
        times, evidence = list[RungTime](), Evidence()
        missing = self.missing(rung)
        try:
            if missing:
                status, reason = "not run", missing
            else:
                worst, wrong, skipped = self.proved(rung)
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
            unclimbed(rung, status, reason), worst=worst, times=tuple(times),
            gain=last.rate / last.before if last and last.before and not last.rough else None, shares=shares,
            regime=regime(shares) if last else "", assembly=evidence.assembly, skipped=skipped,
            launch=evidence.launch, resources=evidence.resources, instructions=evidence.instructions,
            counters=evidence.counters,
        )  # fmt: skip

    def _times(self, rung: Rung, before: Rung | None) -> list[RungTime]:
        found = []
        for size in self.sizes(rung):
            here = size == self.timed_size(rung)
            for threads in self.counts(rung) if here else self.counts(rung)[-1:]:
                self.beat(f"timing at {sized(size)}{counted(threads)}")
                found.append(self.race(rung, before if here else None, size, threads))
        return found


def unclimbed(rung: Rung, status: str, reason: str) -> RungResult:
    """What is known of a rung from its file, with nothing measured."""
    return RungResult(
        number=rung.number, file=rung.path.name, sha256=rung.sha256(), title=rung.title, target=rung.target,
        hypothesis=rung.hypothesis, next=rung.next, predicted=rung.predicts, status=status, reason=reason, worst=None,
        times=(), gain=None, loads=rung.loads, shares={}, regime="", assembly=(), language=rung.language,
        format=rung.format, multiples=rung.multiples,
    )  # fmt: skip


def regime(shares: dict[str, float]) -> str:
    """The largest share's name, where it explains enough of the time."""
    largest = max(shares, key=lambda name: shares[name], default="")
    if not largest or shares[largest] < EXPLAINED:
        return "latency"
    return "compute" if largest in (MULTIPLY_ADDS, MATRIX_PIPE) else f"memory {largest}"
