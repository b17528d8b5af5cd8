"""Rungs in CUDA C++ or Triton on a GPU: compiled, benchmarked in batches between events, over inputs that L2 cannot
hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.climb.climber import MULTIPLY_ADDS, PREVIOUS_RUNG, THIS_RUNG, Climber, DeviceStopped, Evidence
from kernelworks.climb.judge import draw_inputs
from kernelworks.climb.ladder import Rung
from kernelworks.climb.launching import RungLoader, rung_loader
from kernelworks.climb.problem import Inputs, Size
from kernelworks.climb.registers import one_pass
from kernelworks.climb.residency import resident_blocks
from kernelworks.climb.sass import hot_loop
from kernelworks.machine import gpu
from kernelworks.measure.clock.race import Race
from kernelworks.records import GpuPeaks
from kernelworks.records.climb import RungResult, RungTime
from kernelworks.report import roofs

__all__ = ["OnGpu"]

CAPABILITY = (9, 0)  # what build.cuda compiles for
BATCH_S = 0.003  # of calls between two events
MOST_CALLS = 64  # in a batch
MOST_SETS = 8  # of inputs
QUEUED_ROUNDS = 4  # rounds before the host waits
WARM_UP_S = 0.5  # of the race itself, untimed: by then the power limit has fixed the clock
LEAST_ROUNDS, MOST_ROUNDS = 12, 120
SLOW_S = 0.1  # a call: from here on a few rounds must do
SLOW_ROUNDS = 5


class OnGpu(Climber):
    known: GpuPeaks

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        torch.backends.cuda.matmul.allow_tf32 = False  # a float32 baseline computes in float32
        self.loads = rung_loader(self.ladder.problem)
        self._sets: tuple[Any, list[Inputs]] = (None, [])

    def missing_reason(self, rung: Rung) -> str:
        have = gpu().capability
        return "" if have == CAPABILITY else f"rungs are compiled for {rung.target}, this GPU is sm_{have[0]}{have[1]}"

    def counts(self, rung: Rung) -> list[int]:
        return [0]

    def call(self, rung: Rung, size: Size, given: Inputs, out: Tensor, threads: int) -> Callable[[], Tensor]:
        return self.loads.call(rung, size, given, out)

    def climb_rung(self, rung: Rung, before: Rung | None) -> RungResult:
        """Raises DeviceStopped if the GPU does not survive the rung."""
        try:
            return super().climb_rung(rung, before)
        except RuntimeError as error:
            try:
                torch.cuda.synchronize()
            except RuntimeError as gone:
                raise DeviceStopped(f"stopped the GPU: {str(gone).strip().splitlines()[0]}") from error
            raise

    def evidence(self, rung: Rung) -> Evidence:
        """What it takes of a multiprocessor, and its hot loop."""
        problem = self.ladder.problem
        if rung.language == "py":
            return self._evidence_of_triton(rung)
        assert isinstance(self.loads, RungLoader) and rung.launch is not None  # rung_of asks for it
        loaded, ask = self.loads.of(rung), rung.launch
        blocks = self.loads.grid(rung, self.size)
        shared = loaded.shared_bytes + ask.shared
        outputs = {} if problem.tiled else {"tile_rows": ask.tile[0], "tile_columns": ask.tile[1]}
        launch = {"threads": ask.threads, **outputs,
                  "cluster": ask.cluster, "blocks": math.prod(blocks), "workspace": ask.workspace}  # fmt: skip
        resident = resident_blocks(ask.threads, loaded.registers, shared)
        resources = {"registers": loaded.registers, "local_bytes": loaded.local_bytes, "shared_bytes": shared,
                     "blocks_resident": resident, "warps_resident": resident * -(-ask.threads // 32)}  # fmt: skip
        loop, instructions, why = hot_loop(rung.path, problem.symbol, moving=problem.unit == "GB/s")
        if why:
            self.note(why)
        resources |= one_pass(loop)
        return Evidence(assembly=loop, launch=launch, resources=resources, instructions=instructions)

    def _evidence_of_triton(self, rung: Rung) -> Evidence:
        from kernelworks.climb.triton_rungs import compile_triton_rung

        made = compile_triton_rung(self.ladder.problem, rung)
        loop, instructions, why = made.hot_loop(moving=self.ladder.problem.unit == "GB/s")
        if why:
            self.note(why)
        launch = {"threads": made.kernel.threads, "cluster": made.kernel.clusters, "blocks": math.prod(made.grid)}
        taken = made.resources()
        resident = resident_blocks(made.kernel.threads, taken["registers"], taken["shared_bytes"])
        held = {"blocks_resident": resident, "warps_resident": resident * -(-made.kernel.threads // 32)}
        return Evidence(
            assembly=loop, launch=launch, resources=taken | held | one_pass(loop), instructions=instructions
        )

    # ------------------------------------------------ the race

    def sets(self, size: Size, format_name: str) -> list[Inputs]:
        """The verified inputs, and so many more that one round of calls moves twice what L2 holds."""
        key = (*size.values(), format_name)
        if self._sets[0] != key:
            first = self.reference_case(size, format_name).given
            moved = sum(value.nbytes for value in first.values())
            count = min(MOST_SETS, max(2, math.ceil(2 * self.known.l2_bytes / max(1, moved))))
            self._sets = (key, [])  # lets go of what is held before more is drawn
            more = [draw_inputs(self.ladder.problem, size, format_name, seed=1000 + i) for i in range(count - 1)]
            self._sets = (key, [first, *more])
        return self._sets[1]

    def race(self, rung: Rung, before: Rung | None, size: Size, threads: int) -> RungTime:
        problem, format_name = self.ladder.problem, rung.format
        reference_case, sets = self.reference_case(size, format_name), self.sets(size, format_name)
        outs = [self._out(size) for _ in sets]
        own = [self.loads.call(rung, size, given, out) for given, out in zip(sets, outs, strict=True)]
        variants: dict[str, list[Callable[[], Tensor]]] = {THIS_RUNG: own}
        if before is not None:
            theirs = sets if before.format == format_name else [self.reference_case(size, before.format).given]
            variants[PREVIOUS_RUNG] = [self.loads.call(before, size, given, self._out(size)) for given in theirs]
        for name, maker in self.baselines(size, format_name, threads).items():
            variants[name] = [maker(given) for given in sets]
        found = race_batches(variants, self.budget_s, self.note)
        _, wrong = reference_case.judge(outs[0])
        if wrong:
            raise ArithmeticError(f"after timing: {wrong}")
        work, timed = problem.work(format_name, size), found.stats(THIS_RUNG)
        rates = {name: work / found.stats(name).median for name in variants}
        return RungTime(
            threads=0, size=size, median_s=timed.median, low_s=timed.low, high_s=timed.high, samples=timed.samples,
            rate=rates[THIS_RUNG], peak=self._peak(),
            baselines={name: rates[name] for name in problem.baselines_of(format_name) if name in rates},
            before=rates.get(PREVIOUS_RUNG), thrown=0,
        )  # fmt: skip

    def _out(self, size: Size) -> Tensor:
        return torch.empty(self.ladder.problem.shape(size), dtype=self.ladder.problem.dtype, device="cuda")

    # ------------------------------------------------ what the measured peaks explain

    def _peak(self) -> float:
        if self.ladder.problem.unit == "GB/s":
            return roofs.slopes(self.known, 1)["HBM"]
        kind = self.ladder.problem.arithmetic
        unit = "multiply-add" if kind == "float32" else "torch.mm"
        return max(r.burst_tflops * 1e3 for r in self.known.rates if (r.dtype, r.unit) == (kind, unit))

    def shares(self, rung: Rung, timed: RungTime) -> dict[str, float]:
        """Its multiply-adds, its bytes at each level that has a measured peak, and what must come from memory at
        least."""
        problem, shares, reads = self.ladder.problem, dict[str, float](), roofs.slopes(self.known, 1)
        gflops = problem.flop(timed.size) / timed.median_s / 1e9
        if problem.unit == "GFLOP/s":
            shares[MULTIPLY_ADDS] = timed.rate / timed.peak
        for level, read in reads.items():
            if level in rung.loads:
                shares[level] = gflops / 2 * rung.loads[level] / read
        if problem.unit == "GB/s":
            shares["HBM"] = timed.rate / timed.peak
        elif "HBM" not in shares:
            shares["HBM"] = problem.bytes(timed.size) / timed.median_s / 1e9 / reads["HBM"]
        return shares


# ---------------------------------------------------------------- batches


def _event() -> Any:
    event: Any = torch.cuda.Event  # without annotations
    return event(enable_timing=True)


def _seconds(run: Callable[[], object]) -> float:
    begin, end = _event(), _event()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _batch(calls: Sequence[Callable[[], object]], count: int) -> Callable[[], object]:
    def run() -> None:
        for i in range(count):
            calls[i % len(calls)]()

    return run


def _graphed(run: Callable[[], object]) -> Callable[[], object]:
    """The same launches from a graph, so that the host's time is not measured. Raises RuntimeError."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], object] = graph.replay
    return replay


def _calls(seconds: float, sets: int) -> int:
    """In a batch of calls of so long: every input set as often."""
    if seconds > BATCH_S:
        return 1
    return min(MOST_CALLS // sets, math.ceil(BATCH_S / seconds / sets)) * sets


def race_batches(
    variants: dict[str, list[Callable[[], Tensor]]], budget_s: float, note: Callable[[str], None] = lambda text: None
) -> Race:
    """Every variant in turn, a batch of calls each, the order turned round every time. Device time a call.

    A batch takes some 3 ms, its calls walk over a variant's input sets, and it is one CUDA graph. If one variant
    cannot be captured, none is.
    """
    isolated_s: dict[str, float] = {}
    for name, calls in variants.items():
        for call in calls:
            call()  # loads what is loaded late
        isolated_s[name] = _seconds(_batch(calls, len(calls))) / len(calls)
    counts = {name: _calls(isolated_s[name], len(calls)) for name, calls in variants.items()}
    batches = {name: _batch(calls, counts[name]) for name, calls in variants.items()}
    try:
        runs = {name: _graphed(batch) for name, batch in batches.items()}
    except RuntimeError as error:
        torch.cuda.synchronize()
        note(f"timed without CUDA graphs: {str(error).splitlines()[0]}")
        runs = batches
    slow = max(isolated_s.values()) > SLOW_S
    least = SLOW_ROUNDS if slow else LEAST_ROUNDS
    samples: dict[str, list[float]] = {name: [] for name in variants}
    order, warm, rounds = list(variants), time.monotonic() + (0.0 if slow else WARM_UP_S), 0
    end = 0.0
    while rounds < least or (rounds < MOST_ROUNDS and time.monotonic() < end):
        queued: list[tuple[str, Any, Any]] = []
        for _ in range(1 if slow else QUEUED_ROUNDS):
            for name in order:
                begin, finish = _event(), _event()
                begin.record()
                runs[name]()
                finish.record()
                queued.append((name, begin, finish))
            order.reverse()
        torch.cuda.synchronize()
        if time.monotonic() < warm:
            continue
        end = end or time.monotonic() + budget_s * len(variants)
        rounds += len(queued) // len(order)
        for name, begin, finish in queued:
            samples[name].append(begin.elapsed_time(finish) / 1e3 / counts[name])
    return Race(samples, 0, 0)
