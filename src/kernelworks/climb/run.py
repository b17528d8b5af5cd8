"""Climbs a ladder: every rung is built, proved against float64 and only then raced."""

from __future__ import annotations

import ctypes
import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks import ceilings
from kernelworks.bench.faults import kept_out
from kernelworks.bench.results import commit
from kernelworks.bench.timing import Race, race
from kernelworks.build import TARGETS, BuildError, library
from kernelworks.build.cpp import built, toolchain
from kernelworks.ceilings import Ambiguous
from kernelworks.ceilings.quiet import Quiet
from kernelworks.ceilings.survey import FLOPS_SOURCE, targets
from kernelworks.climb.assembly import inner_loop
from kernelworks.climb.ladder import Ladder, Rung
from kernelworks.climb.problem import Problem, Size
from kernelworks.machine import machine
from kernelworks.records import Ceilings
from kernelworks.rungs import Climb, RungResult, RungTime

__all__ = ["climb"]

Progress = Callable[[str, int, int], None]
Call = Callable[[int], object]
SETTLE_S = 0.02  # between arms of several threads: what a library's idle threads spin for
PEAK_S = 0.01  # one call of the multipliers' arm
EXPLAINED = 0.6  # of the time: from here on the largest term names the regime
MULTIPLY_ADDS, CEILING, HERE, BEFORE = "multiply-adds", "ceiling", "this rung", "rung before"
GUARD = 256  # elements on either side of an output that no rung may touch


@dataclass
class _Truth:
    """Inputs of one size with their float64 output and bound."""

    size: Size
    given: dict[str, Tensor]
    copies: dict[str, Tensor]
    reference: Tensor
    bound: Tensor

    @classmethod
    def of(cls, problem: Problem, size: Size, seed: int) -> _Truth:
        given = problem.inputs(size, torch.Generator().manual_seed(seed))
        exact = {name: value.double() for name, value in given.items()}
        reference = problem.reference(exact)
        copies = {name: value.clone() for name, value in given.items()}
        return cls(size, given, copies, reference, problem.bound(exact, reference))

    def judge(self, out: Tensor) -> tuple[float, str]:
        """The worst error as a share of the bound, and what is wrong, "" where nothing is."""
        error = (out.double() - self.reference).abs()
        within = error <= self.bound  # False for NaN
        share = (
            (error / self.bound.clamp_min(torch.finfo(torch.float64).tiny)).nan_to_num(nan=float("inf")).max().item()
        )
        if bool(within.all()):
            return share, ""
        at = tuple((~within).nonzero()[0].tolist())
        got, want, most = out[at].item(), self.reference[at].item(), self.bound[at].item()
        count = int((~within).sum())
        return (
            share,
            f"{count} of {within.numel()} elements; at {list(at)} {got:.9g}, expected {want:.9g} +- {most:.3g}",
        )


class _Guarded:
    """An output with a guard band on either side, poisoned before each proof."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = torch.Size(shape).numel()
        self.whole = torch.full((self.count + 2 * GUARD,), float("nan"))
        self.out = self.whole[GUARD : GUARD + self.count].view(shape)

    def poison(self) -> None:
        self.whole.fill_(float("nan"))

    def overrun(self) -> bool:
        edges = torch.cat((self.whole[:GUARD], self.whole[GUARD + self.count :]))
        return not bool(edges.isnan().all())


@dataclass
class _Climber:
    ladder: Ladder
    size: Size
    known: Ceilings
    quiet: Callable[[], Quiet]
    budget_s: float
    notes: list[str] = field(default_factory=list)
    truths: dict[tuple[int, ...], _Truth] = field(default_factory=dict)
    loaded: dict[int, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return self.ladder.problem

    def truth(self, size: Size) -> _Truth:
        key = tuple(size.values())
        if key not in self.truths:
            self.truths[key] = _Truth.of(self.problem, size, seed=len(self.truths))
        return self.truths[key]

    def timed_size(self, rung: Rung) -> Size:
        rows = self.problem.rows
        if not rung.rows or not rows:
            return self.size
        return self.size | {rows: min(rung.rows, self.size[rows])}

    def counts(self, rung: Rung) -> list[int]:
        """Thread counts, least first."""
        return sorted({count or machine().cores for count in rung.threads})

    def function(self, rung: Rung) -> Any:
        """The rung's compiled function. Raises BuildError, also where the function is missing."""
        if rung.number not in self.loaded:
            try:
                found = getattr(ctypes.CDLL(str(built(rung.path, rung.target))), self.problem.symbol)
            except AttributeError as error:
                raise BuildError(f"{rung.path.name} exports no {self.problem.symbol}") from error
            found.argtypes, found.restype = list(self.problem.signature), None
            self.loaded[rung.number] = found
        return self.loaded[rung.number]

    def call(self, rung: Rung, truth: _Truth, out: Tensor, threads: int) -> Callable[[], Tensor]:
        function = self.function(rung)
        assert self.problem.arguments is not None
        arguments = self.problem.arguments(truth.size, truth.given, out, threads)

        def run() -> Tensor:
            function(*arguments)
            return out

        return run


def _proved(c: _Climber, rung: Rung) -> tuple[float, str]:
    """The worst error as a share of the bound over all sizes and thread counts, and what is wrong."""
    worst = 0.0
    for size in (*c.problem.proof_sizes, c.timed_size(rung)):
        truth = c.truth(size)
        held = _Guarded(c.problem.shape(size))
        for threads in c.counts(rung):
            held.poison()
            c.call(rung, truth, held.out, threads)()
            share, wrong = truth.judge(held.out)
            if not wrong and held.overrun():
                wrong = "wrote outside its output"
            if not wrong and any(not torch.equal(truth.given[n], truth.copies[n]) for n in truth.given):
                wrong = "changed its inputs"
            worst = max(worst, share)
            if wrong:
                shape = ", ".join(f"{name} {value}" for name, value in size.items())
                return worst, f"{shape}, {threads} thread{'s' if threads > 1 else ''}: {wrong}"
    return worst, ""


# ---------------------------------------------------------------- the race


def _multipliers(threads: int) -> tuple[Call, float]:
    """A call of nothing but multiply-adds in the widest unit, and its flop."""
    isa = [name for name in targets(machine()) if name != "avx512_bf16"][-1]
    kernel, result = library(FLOPS_SOURCE, isa).fma32, torch.zeros(3, dtype=torch.float64)
    rounds = 1 << 16
    kernel(result, rounds, threads)
    while result[0].item() < PEAK_S and rounds < 1 << 30:
        rounds *= 2
        kernel(result, rounds, threads)
    flop = (result[1] * result[2]).item()
    return lambda index: kernel(result, rounds, threads), flop


def _peer_arms(c: _Climber, threads: int) -> dict[str, Call]:
    """Every peer that runs here and computes the same."""
    truth, arms = c.truth(c.size), dict[str, Call]()
    for name, maker in c.problem.peers.items():
        call = maker(truth.given, threads)
        if call is None:
            _note(c, f"{name} does not run here")
            continue
        _, wrong = truth.judge(call())
        if wrong:
            _note(c, f"{name} is left out, its result is wrong: {wrong}")
            continue
        arms[name] = lambda index, call=call: call()  # type: ignore[misc]
    return arms


def _note(c: _Climber, text: str) -> None:
    if text not in c.notes:
        c.notes.append(text)


def _spaced(arms: dict[str, Call], threads: int) -> dict[str, Call]:
    """With several threads a pause after every arm, so that none pays for another's spinning threads."""
    if threads == 1:
        return arms
    spaced: dict[str, Call] = {}
    for name, call in arms.items():
        spaced[name] = call
        spaced[f"pause after {name}"] = lambda index: time.sleep(SETTLE_S)
    return spaced


def _raced(c: _Climber, rung: Rung, before: Rung | None, threads: int) -> RungTime:
    """Raises Ambiguous."""
    torch.set_num_threads(threads)
    size = c.timed_size(rung)
    truth = c.truth(size)
    out = torch.empty(c.problem.shape(size))
    own = c.call(rung, truth, out, threads)
    peak, peak_flop = _multipliers(threads)
    arms: dict[str, Call] = {HERE: lambda index: own(), CEILING: peak, **_peer_arms(c, threads)}
    flops = dict.fromkeys(arms, c.problem.flop(c.size)) | {CEILING: peak_flop, HERE: c.problem.flop(size)}
    if before is not None:
        there = c.truth(c.timed_size(before))
        kept = torch.empty(c.problem.shape(there.size))
        previous = c.call(before, there, kept, min(threads, c.counts(before)[-1]))
        arms[BEFORE] = lambda index: previous()
        flops[BEFORE] = c.problem.flop(there.size)
    with kept_out():
        found = race(_spaced(arms, threads), 1, budget_s=c.budget_s, quiet=c.quiet())
    _, wrong = truth.judge(out)
    if wrong:
        raise ArithmeticError(f"after timing: {wrong}")
    rates = {name: flops[name] / found.timed(name).median / 1e9 for name in arms}
    kept_rate = max((f.gflops for f in c.known.flops if (f.dtype, f.threads) == ("float32", threads)), default=0.0)
    timed = found.timed(HERE)
    return RungTime(
        threads=threads, size=size, median_s=timed.median, low_s=timed.low, high_s=timed.high, samples=timed.samples,
        rate=rates[HERE], ceiling=max(kept_rate, _high_rate(found, peak_flop)),
        peers={name: rates[name] for name in c.problem.peers if name in rates},
        before=rates.get(BEFORE), thrown=found.thrown,
    )  # fmt: skip


def _high_rate(found: Race, flop: float) -> float:
    """What the multipliers reached in this race: their 90th percentile, as a ceiling is read."""
    return flop / found.timed(CEILING).low / 1e9


# ---------------------------------------------------------------- one rung


def _missing(rung: Rung) -> str:
    """Why the rung cannot run on this machine."""
    lacks = TARGETS[rung.target].needs - machine().features
    return f"this machine has no {', '.join(sorted(lacks))}" if lacks else ""


def _shares(c: _Climber, rung: Rung, timed: RungTime) -> dict[str, float]:
    """Which share of the rung's time each ceiling explains: its own multiply-adds, and its bytes at each level."""
    units = [f.gflops for f in c.known.flops if (f.dtype, f.isa, f.threads) == ("float32", rung.target, timed.threads)]
    shares = {MULTIPLY_ADDS: timed.rate / units[0]} if units else {}
    for level, count in rung.loads.items():
        read = [b.gbs for b in c.known.bandwidth if (b.level, b.kind, b.threads) == (level, "read", timed.threads)]
        if read:
            shares[level] = timed.rate / 2 * count / read[0]
    return shares


def _regime(shares: dict[str, float]) -> str:
    largest = max(shares, key=lambda name: shares[name], default="")
    if not largest or shares[largest] < EXPLAINED:
        return "latency"
    return "compute" if largest == MULTIPLY_ADDS else f"memory {largest}"


def _one(c: _Climber, rung: Rung, before: Rung | None) -> RungResult:
    status, reason, worst = "proved", "", None
    times: list[RungTime] = []
    assembly: tuple[str, ...] = ()
    missing = _missing(rung)
    try:
        if missing:
            status, reason = "not run", missing
        else:
            worst, wrong = _proved(c, rung)
            if wrong:
                status, reason = "wrong", wrong
            else:
                assembly = inner_loop(built(rung.path, rung.target))
                times = [_raced(c, rung, before, threads) for threads in c.counts(rung)]
    except BuildError as error:
        status, reason = "not run", str(error)
    except Ambiguous as error:
        status, reason, times = "ambiguous", str(error).removeprefix("ambiguous: "), []
    except ArithmeticError as error:
        status, reason, times = "wrong", str(error), []
    last = times[-1] if times else None
    shares = _shares(c, rung, last) if last else {}
    return RungResult(
        number=rung.number, file=rung.path.name, sha256=rung.sha256(), title=rung.title, target=rung.target,
        hypothesis=rung.hypothesis, next=rung.next, predicted=rung.predicts, status=status, reason=reason, worst=worst,
        times=tuple(times), gain=last.rate / last.before if last and last.before else None,
        loads=rung.loads, shares=shares, regime=_regime(shares) if last else "", assembly=assembly,
    )  # fmt: skip


def _document(c: _Climber, results: Sequence[RungResult], seconds: float) -> Climb:
    return Climb(
        ladder=c.ladder.name, title=c.problem.title, size=c.size, flop=c.problem.flop(c.size),
        bytes=c.problem.bytes(c.size), lessons=c.problem.lessons,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), commit=commit(),
        versions={"torch": torch.__version__, "compiler": toolchain()}, ceilings=c.known, rungs=tuple(results),
        notes=tuple(c.notes), seconds=seconds,
    )  # fmt: skip


def climb(
    ladder: Ladder,
    rung: int | None = None,
    *,
    size: Size | None = None,
    known: Ceilings | None = None,
    budget_s: float = 0.5,
    quiet: Callable[[], Quiet] = lambda: Quiet(patience=24),
    progress: Progress | None = None,
    done: Callable[[RungResult], None] | None = None,
) -> Climb:
    """Builds, proves and races every rung of a ladder, or one of them; ``done`` is called after each.

    Proof: every size of the problem's and the timed one, each thread count, outputs poisoned and guarded, inputs
    compared; a rung that is wrong gets no figure. Race: the rung, the rung before it (if right), the problem's peers
    and the machine's multipliers, in alternation, ``budget_s`` seconds an arm and at least seven rounds.

    Args:
        size: what to time instead of the problem's own. known: ceilings, by default this machine's, measured if need
            be.
    Raises: ValueError for a rung that the ladder does not have; Ambiguous where the ceilings could not be measured.
    """
    begin = time.monotonic()
    wanted = [r for r in ladder.rungs if rung in (None, r.number)]
    if not wanted:
        raise ValueError(f"{ladder.name} has rungs {', '.join(str(r.number) for r in ladder.rungs)}, got {rung}")
    c = _Climber(ladder, size or ladder.problem.size, known or ceilings.ceilings(progress), quiet, budget_s)
    threads_before, results = torch.get_num_threads(), list[RungResult]()
    right: Rung | None = None
    if rung is not None:
        earlier = [r for r in ladder.rungs if r.number < rung]
        right = next((r for r in reversed(earlier) if not _missing(r) and not _proved(c, r)[1]), None)
    try:
        with torch.inference_mode():
            for index, one in enumerate(wanted):
                if progress is not None:
                    progress(f"{one.number} {one.title}", index, len(wanted))
                results.append(_one(c, one, right))
                if results[-1].status in ("proved", "ambiguous"):
                    right = one
                if done is not None:
                    done(results[-1])
    finally:
        torch.set_num_threads(threads_before)
    return _document(c, results, time.monotonic() - begin)
