"""Rungs in C++ on the CPU: compiled like the library's kernels, benchmarked in quiet windows on one core and on all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import TARGETS, BuildError, library
from kernelworks.build.cpp import build_library
from kernelworks.build.loading import open_library
from kernelworks.climb.assembly import inner_loop
from kernelworks.climb.climber import MULTIPLY_ADDS, PEAK, PREVIOUS_RUNG, THIS_RUNG, Climber, Evidence
from kernelworks.climb.cycles import counters
from kernelworks.climb.ladder import Rung
from kernelworks.climb.problem import Inputs, Size
from kernelworks.machine import machine
from kernelworks.measure.clock.noise import CpuTimes, Quiet
from kernelworks.measure.clock.page_faults import without_page_faults
from kernelworks.measure.clock.race import Race, race
from kernelworks.measure.peaks.survey import BANDWIDTH_SOURCE, FLOPS_SOURCE, PAD_BYTES, targets, working_sets
from kernelworks.records import Peaks
from kernelworks.records.climb import RungTime

__all__ = ["OnCpu"]

Call = Callable[[int], object]
IDLE_PAUSE_S = 0.02  # between variants of several threads: what a library's idle threads spin for
PEAK_S = 0.01  # one call of the peak's variant
ENOUGH_S = 6.0  # of a race: calls of tenths of a second are timed five times, so that a ladder takes under 3 minutes
BEYOND = 4  # times the largest cache: what inputs in rotation must exceed where reads of memory are measured
MOST_SETS = 12


class OnCpu(Climber):
    known: Peaks
    _loaded: dict[int, Any] | None = None

    def missing_reason(self, rung: Rung) -> str:
        lacks = TARGETS[rung.target].needs - machine().features
        return f"this machine has no {', '.join(sorted(lacks))}" if lacks else ""

    def counts(self, rung: Rung) -> list[int]:
        return sorted({count or machine().cores for count in rung.threads})

    def function(self, rung: Rung) -> Any:
        """The rung's compiled function. Raises BuildError, also if the function is missing."""
        if self._loaded is None:
            self._loaded = {}
        if rung.number not in self._loaded:
            problem = self.ladder.problem
            try:
                found = getattr(open_library(build_library(rung.path, rung.target)), problem.symbol)
            except AttributeError as error:
                raise BuildError(f"{rung.path.name} exports no {problem.symbol}") from error
            own = problem.formats[rung.format].signature if rung.format else None
            found.argtypes, found.restype = list(own or problem.signature), None
            self._loaded[rung.number] = found
        return self._loaded[rung.number]

    def call(self, rung: Rung, size: Size, given: Inputs, out: Tensor, threads: int) -> Callable[[], Tensor]:
        function, problem = self.function(rung), self.ladder.problem
        own = problem.formats[rung.format].arguments if rung.format else None
        maker = own or problem.arguments
        assert maker is not None  # problem_of asks for it
        arguments, held = maker(size, given, out, threads), (given, out)  # the arguments may be bare addresses

        def run() -> Tensor:
            function(*arguments)
            return held[1]

        return run

    def evidence(self, rung: Rung) -> Evidence:
        found = Evidence(assembly=inner_loop(build_library(rung.path, rung.target)))
        reference_case = self.reference_case(self.timed_size(rung), rung.format)
        out = torch.empty(self.ladder.problem.shape(reference_case.size), dtype=self.ladder.problem.dtype)
        found.counters, why = counters(self.call(rung, reference_case.size, reference_case.given, out, 1))
        if why:
            self.note(why)
        return found

    # ------------------------------------------------ the race

    def _quiet(self) -> Quiet:
        if self.watch:
            return Quiet(patience=24, rough=self.rough)
        return Quiet(window_s=0.0, times=lambda: CpuTimes(time.monotonic(), 0.0, 0.0, 1))

    def race(self, rung: Rung, before: Rung | None, size: Size, threads: int) -> RungTime:
        torch.set_num_threads(threads)
        problem, format_name = self.ladder.problem, rung.format
        reference_case = self.reference_case(size, format_name)
        out = torch.empty(problem.shape(size), dtype=problem.dtype)
        own = [self.call(rung, size, given, out, threads) for given in self._sets(reference_case.given)]
        peak, peak_work = _reading(threads) if problem.unit == "GB/s" else _multiplying(threads)
        variants: dict[str, Call] = {THIS_RUNG: _in_turn(own), PEAK: peak}
        whole = self.size if size == self.timed_size(rung) else size
        for name, maker in self.baselines(whole, format_name, threads).items():
            variants[name] = _in_turn(
                [maker(given) for given in self._sets(self.reference_case(whole, format_name).given)]
            )
        work = dict.fromkeys(variants, problem.work(format_name, whole)) | {
            PEAK: peak_work,
            THIS_RUNG: problem.work(format_name, size),
        }
        if before is not None:
            there = self.reference_case(self.timed_size(before), before.format)
            kept = torch.empty(problem.shape(there.size), dtype=problem.dtype)
            most = min(threads, self.counts(before)[-1])
            variants[PREVIOUS_RUNG] = _in_turn(
                [self.call(before, there.size, given, kept, most) for given in self._sets(there.given)]
            )
            work[PREVIOUS_RUNG] = problem.work(format_name, there.size)
        with without_page_faults():
            pause, budget_s = (IDLE_PAUSE_S, 2 * self.budget_s) if threads > 1 else (0.0, self.budget_s)
            found = race(variants, MOST_SETS, budget_s=budget_s, pause_s=pause, enough_s=ENOUGH_S, quiet=self._quiet())
        _, wrong = reference_case.judge(out)
        if wrong:
            raise ArithmeticError(f"after timing: {wrong}")
        rates = {name: work[name] / found.stats(name).median for name in variants}
        timed = found.stats(THIS_RUNG)
        return RungTime(
            threads=threads, size=size, median_s=timed.median, low_s=timed.low, high_s=timed.high,
            samples=timed.samples, rate=rates[THIS_RUNG],
            peak=max(self._recorded_peak(threads), _high(found, peak_work)),
            baselines={name: rates[name] for name in problem.baselines_of(format_name) if name in rates},
            before=rates.get(PREVIOUS_RUNG), thrown=found.thrown,
            rough=bool(found.taken),
        )  # fmt: skip

    def _sets(self, given: Inputs) -> list[Inputs]:
        """The inputs, and where memory is what is measured as many copies of them as no cache can hold on to."""
        size = sum(value.nbytes for value in given.values())
        cached = max((count for _, count in machine().cache_bytes), default=0)
        if self.ladder.problem.unit != "GB/s" or not size:
            return [given]
        count = min(MOST_SETS, max(1, -(-BEYOND * cached // size)))
        return [given, *({name: value.clone() for name, value in given.items()} for _ in range(count - 1))]

    def _recorded_peak(self, threads: int) -> float:
        """The measured peak that is on record for this machine."""
        if self.ladder.problem.unit == "GB/s":
            return max(self._reads("DRAM", threads), default=0.0)
        kind = self.ladder.problem.arithmetic
        return max((f.gflops for f in self.known.flops if (f.dtype, f.threads) == (kind, threads)), default=0.0)

    def _reads(self, level: str, threads: int) -> list[float]:
        return [b.gbs for b in self.known.bandwidth if (b.level, b.kind, b.threads) == (level, "read", threads)]

    def shares(self, rung: Rung, timed: RungTime) -> dict[str, float]:
        """Its own multiply-adds, its bytes at each level, and what must come from memory."""
        kind, problem = self.ladder.problem.arithmetic, self.ladder.problem
        gflops = problem.flop(timed.size) / timed.median_s / 1e9
        units = {f.dtype: f.gflops for f in self.known.flops if (f.isa, f.threads) == (rung.target, timed.threads)}
        unit = units.get(kind) or max(units.values(), default=0.0)  # of a target for one dtype: that one's
        shares = {MULTIPLY_ADDS: gflops / unit} if unit else {}
        for level, count in rung.loads.items():
            for read in self._reads(level, timed.threads)[:1]:
                shares[level] = gflops / 2 * count / read
        if problem.unit == "GB/s":
            shares["DRAM"] = timed.rate / timed.peak
        return shares


def _in_turn(calls: Sequence[Callable[[], object]]) -> Call:
    """One call for each set of inputs."""
    return lambda index: calls[index % len(calls)]()


def _isa() -> str:
    return [name for name in targets(machine()) if name != "avx512_bf16"][-1]


def _multiplying(threads: int) -> tuple[Call, float]:
    """A call of nothing but multiply-adds in the widest unit, and its GFLOP."""
    kernel, result = library(FLOPS_SOURCE, _isa()).fma32, torch.zeros(3, dtype=torch.float64)
    rounds = 1 << 16
    kernel(result, rounds, threads)
    while result[0].item() < PEAK_S and rounds < 1 << 30:
        rounds *= 2
        kernel(result, rounds, threads)
    flop = (result[1] * result[2]).item()
    return lambda index: kernel(result, rounds, threads), flop / 1e9


def _reading(threads: int) -> tuple[Call, float]:
    """A call of nothing but reads of memory, and its GB."""
    kernels, result = library(BANDWIDTH_SOURCE, _isa()), torch.zeros(2, dtype=torch.float64)
    size = working_sets(machine(), threads)["DRAM"]
    buffer = torch.empty(threads * (size + PAD_BYTES) + PAD_BYTES, dtype=torch.uint8)
    kernels.touch(result, buffer, size, threads)
    kernels.read(result, buffer, size, 1, threads)
    given = result[1].item()
    return lambda index: kernels.read(result, buffer, size, 1, threads), size * given / 1e9


def _high(found: Race, work: float) -> float:
    """What the peak's variant reached in this race: its 90th percentile, as a peak is read."""
    return work / found.stats(PEAK).low
