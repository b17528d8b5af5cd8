"""Measure what this machine can do. Nothing here is a datasheet figure, and nothing is printed when it was too busy.

A measured peak is what the machine reaches when it is left alone. So every figure is taken in several rounds some
seconds apart, each a window in which other processes used at most a tenth of the cores; a window's figure is the 90th
percentile of samples of a few milliseconds (not one lucky sample), and the best round counts. Rounds matter because a
neighbour on the same silicon but in another virtual machine takes half the bandwidth without being seen here; a figure
that two rounds agree on is not measured a third time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kernelworks.build import TARGETS, background, library
from kernelworks.build.cpp import source_hash, toolchain
from kernelworks.build.worker_pool import worker_pool
from kernelworks.machine import Machine, machine
from kernelworks.measure.clock.noise import Ambiguous, Quiet
from kernelworks.measure.peaks.mending import doubts, repair_record
from kernelworks.records import Bandwidth, FlopRate, FunctionRate, Peaks

__all__ = ["FUNCTIONS", "SOURCES", "fingerprint", "measure", "targets", "unmeasured_peaks", "working_sets"]

FOLDER = Path(__file__).resolve().parent
SOURCES = tuple(FOLDER / f"{name}.cpp" for name in ("bandwidth", "flops", "functions", "floors"))
BANDWIDTH_SOURCE, FLOPS_SOURCE, FUNCTIONS_SOURCE, FLOORS_SOURCE = SOURCES
KINDS = ("read", "copy", "copy_nt")
FUNCTIONS = ("exp", "tanh", "erf", "log")
SAMPLE_S = 0.004
WINDOW_S, BRIEF_WINDOW_S = 0.18, 0.1
ROUNDS, AGREE = 3, 0.05  # at the most; how near two rounds' figures are that nothing disturbed
DEADLINE_S = 50.0  # No later round starts or goes on after this.
BRIEF_WAIT_S = 15.0  # One round waits so long in all for quiet windows.
ROUND_S = 15.0  # A quiet round takes at least this long.
ATTEMPTS, AGAIN_S = 2, 15.0  # Contradictory figures are measured again so often, within this time.
KIB, MIB = 1024, 1024**2
PAD_BYTES = 4096  # So much lies between the parts of two threads (bandwidth.cpp).

Progress = Callable[[str, int, int], None]


def targets(here: Machine) -> list[str]:
    """Names of the targets that this machine runs, narrowest first."""
    order = ("scalar", "avx2", "avx512", "avx512_bf16")
    return [name for name in order if TARGETS[name].needs <= here.features]


@functools.cache
def fingerprint() -> str:
    """What the measured peaks depend on, as 20 hexadecimal digits: machine, cores, torch, measuring kernels."""
    here = machine()
    parts = [here.kind, here.name, str(here.cores), str(here.cache_bytes), torch.__version__]
    parts += [source_hash(source, target) for source in SOURCES for target in targets(here)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def working_sets(here: Machine, threads: int) -> dict[str, int]:
    """Bytes a thread walks to see each level: well inside that level, well outside the one above."""
    sizes = dict(here.cache_bytes)
    l1 = sizes.get("L1", 32 * KIB)
    sets = {"L1": l1 // 3}
    outermost = l1
    if "L2" in sizes:
        sets["L2"] = sizes["L2"] // 2
        outermost = sizes["L2"]
    if "L3" in sizes:
        sets["L3"] = max(2 * outermost, min(sizes["L3"] // 4, sizes["L3"] // (2 * threads)))
        outermost = sizes["L3"]
    total = min(max(4 * outermost, 128 * MIB), here.memory_bytes // 8)
    sets["DRAM"] = total // threads
    return {level: max(8 * KIB, size // (8 * KIB) * (8 * KIB)) for level, size in sets.items()}


def thread_counts(here: Machine) -> tuple[int, ...]:
    return (1,) if here.cores == 1 else (1, here.cores)


def percentile_90(values: Sequence[float]) -> float:
    """The 90th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


@dataclass
class Point:
    """One figure to measure: ``run(rounds)`` returns the seconds that it took and the work that it did.

    ``record`` is the record to fill, with ``rate`` the name of its rate, in 10^9 of the work a second.
    """

    record: Any
    rate: str
    run: Callable[[int], tuple[float, float]]
    rounds: int = 0
    found: list[float] = field(default_factory=list)
    loud: bool = False  # no quiet window came

    @property
    def name(self) -> str:
        return str(self.record.name)

    @property
    def best(self) -> float:
        return max(self.found)

    def calibrate(self) -> None:
        """Choose how often ``run`` repeats the work, so that a sample takes a few milliseconds."""
        self.rounds = 1
        while (seconds := self.run(self.rounds)[0]) < SAMPLE_S / 2 and self.rounds < 1 << 40:
            self.rounds *= 2 if seconds <= 0 else max(2, min(1024, int(SAMPLE_S / seconds)))

    def sample(self) -> float:
        seconds, work = self.run(self.rounds)
        return work / seconds

    def measure(self, quiet: Quiet) -> None:
        if not self.rounds:
            self.calibrate()
        before = quiet.rough_windows
        self.found.append(percentile_90(quiet.collect(self.sample, self.name)))
        self.loud = quiet.rough_windows > before

    def measured_record(self) -> Any:
        return replace(self.record, **{self.rate: self.best / 1e9})


def _walked(kernel: Any, buffer: torch.Tensor, size: int, threads: int) -> Callable[[int], tuple[float, float]]:
    """``run`` for a kernel that walks ``size`` bytes of the buffer on each thread."""
    result = torch.zeros(2, dtype=torch.float64, device="cpu")

    def run(passes: int) -> tuple[float, float]:
        kernel(result, buffer, size, passes, threads)
        seconds, given = result.tolist()
        return seconds, passes * size * given

    return run


def _bandwidths(here: Machine) -> list[Point]:
    kernels = library(BANDWIDTH_SOURCE, [t for t in targets(here) if t != "avx512_bf16"][-1])
    result = torch.zeros(2, dtype=torch.float64, device="cpu")
    points = []
    for threads in thread_counts(here):
        sets = working_sets(here, threads)
        buffer = torch.empty(threads * (sets["DRAM"] + PAD_BYTES) + PAD_BYTES, dtype=torch.uint8, device="cpu")
        kernels.touch(result, buffer, sets["DRAM"], threads)
        for level, size in sets.items():
            for kind in KINDS:
                record = Bandwidth(level, size, kind, threads, 0.0)
                run = _walked(getattr(kernels, kind), buffer, size, threads)
                points.append(Point(record, "gbs", run))
    return points


def _counted(kernel: Any, threads: int) -> Callable[[int], tuple[float, float]]:
    """``run`` for a kernel whose result is seconds, threads, operations of one thread."""
    result = torch.zeros(3, dtype=torch.float64, device="cpu")

    def run(rounds: int) -> tuple[float, float]:
        kernel(result, rounds, threads)
        seconds, given, work = result.tolist()
        return seconds, work * given

    return run


def _instruction_sets(here: Machine, *, brief: bool) -> list[str]:
    """Those whose rates are measured; in brief not the scalar one, which bounds nothing where there are vectors."""
    have = [name for name in targets(here) if name != "avx512_bf16"]
    return have[1:] if brief and len(have) > 1 else have


def _flop_units(here: Machine, *, brief: bool) -> list[tuple[str, str, str, str]]:
    """dtype, isa, target to compile for, exported name."""
    have = targets(here)
    units: list[tuple[str, str, str, str]] = [
        (dtype, isa, isa, name)
        for isa in _instruction_sets(here, brief=brief)
        for dtype, name in (("float32", "fma32"), ("float64", "fma64"))
    ]
    if "avx512_bf16" in have:
        units.append(("bfloat16", "avx512_bf16", "avx512_bf16", "dot_bf16"))
    if "avx512" in have and "avx512_vnni" in here.features:
        units.append(("int8", "avx512_vnni", "avx512", "dot_int8"))
    return units


def _flops(here: Machine, *, brief: bool) -> list[Point]:
    points = []
    for dtype, isa, target, name in _flop_units(here, brief=brief):
        kernel = getattr(library(FLOPS_SOURCE, target), name)
        for threads in thread_counts(here):
            record = FlopRate(dtype, isa, threads, 0.0)
            points.append(Point(record, "gflops", _counted(kernel, threads)))
    return points


def _functions(here: Machine, *, brief: bool) -> list[Point]:
    points = []
    for isa in _instruction_sets(here, brief=brief):
        kernels = library(FUNCTIONS_SOURCE, isa)
        for name in FUNCTIONS:
            for threads in thread_counts(here):
                record = FunctionRate(name, isa, threads, 0.0)
                run = _counted(getattr(kernels, name), threads)
                points.append(Point(record, "gops", run))
    return points


@dataclass
class Floor:
    """The least time of one thing: the best round's median. ``sample`` returns seconds."""

    name: str
    sample: Callable[[], float]
    found: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.found)

    def measure(self, quiet: Quiet) -> None:
        self.found.append(statistics.median(quiet.collect(self.sample, self.name)))


def _dispatch() -> Floor:
    a, b, out = (torch.ones(1, device="cpu") for _ in range(3))
    calls = 500

    def sample() -> float:
        with torch.inference_mode():
            begin = time.perf_counter()
            for _ in range(calls):
                torch.add(a, b, out=out)
            return (time.perf_counter() - begin) / calls

    return Floor("torch dispatch", sample)


def _floors(here: Machine) -> list[Floor]:
    """Dispatch, fork-join, page fault."""
    kernels = library(FLOORS_SOURCE, "scalar")
    result = torch.zeros(2, dtype=torch.float64, device="cpu")

    def each() -> float:
        seconds, count = result.tolist()
        return float(seconds / max(count, 1.0))

    def fork_join() -> float:
        kernels.fork_join(result, 2000, here.cores)
        return each()

    def page_fault() -> float:
        kernels.page_touch(result, 64 * MIB)
        return each()

    return [_dispatch(), Floor("OpenMP fork-join", fork_join), Floor("page fault", page_fault)]


def _agreed(item: Point | Floor) -> bool:
    """Whether another round came as near to the best one as two do that nothing disturbed."""
    return sum(abs(figure - item.best) <= AGREE * item.best for figure in item.found) > 1


def _rounds(
    items: Sequence[Point | Floor], quiet: Quiet, progress: Progress | None, *, brief: bool = False
) -> int:  # fmt: skip
    """Measure everything once, then what no two rounds agree on again while there is time; for rough figures, and in
    ``brief``, once is enough. Returns how many rounds were completed."""
    begin, rounds = time.monotonic(), 1 if brief or quiet.rough else ROUNDS
    for number in range(rounds):
        if number and time.monotonic() - begin > DEADLINE_S - ROUND_S:
            return number
        for index, item in enumerate(items):
            if _agreed(item):
                continue
            if number and time.monotonic() - begin > DEADLINE_S:
                return number
            if progress is not None:
                progress(f"round {number + 1}: {item.name}", number * len(items) + index, rounds * len(items))
            try:
                item.measure(quiet)
            except Ambiguous:
                if not number:
                    raise
                return number
    return rounds


def _again(points: Sequence[Point], record: Callable[[], Peaks], quiet: Quiet, progress: Progress | None) -> None:
    """Measures what others contradict again. Of what is contradicted after that too, the new figure is the one that is
    kept: it may have been too high."""
    begin = time.monotonic()
    for _ in range(ATTEMPTS):
        doubted = doubts(record(), {point.name for point in points if point.loud})
        for index, point in enumerate(points):
            if point.name not in doubted or time.monotonic() - begin > AGAIN_S:
                continue
            if progress is not None:
                progress(f"again: {point.name}", index, len(points))
            with contextlib.suppress(Ambiguous):
                point.measure(quiet)
                if point.name in doubts(record(), {each.name for each in points if each.loud}):
                    del point.found[:-1]


def unmeasured_peaks(why: str) -> Peaks:
    """What can be said of this machine without a measurement: its name, its caches, and what a call of torch's costs.
    ``why`` nothing was measured."""
    here = machine()
    return Peaks(
        kind=here.kind,
        name=here.name,
        fingerprint="",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cores=here.cores,
        bandwidth=(),
        flops=(),
        functions=(),
        dispatch_us=1e6 * min(_dispatch().sample() for _ in range(5)),
        fork_join_us=0.0,
        page_fault_us=0.0,
        foreign_share=0.0,
        versions={"torch": torch.__version__},
        cache_bytes=dict(here.cache_bytes),
        unknown=why,
    )


def quiet_windows(*, rough: bool = False, brief: bool = False) -> Quiet:
    """The windows in which peaks are measured; rough ones wait for a quiet window twice, not 48 times, and are taken
    once, not three times. ``brief`` ones are shorter, and wait ``BRIEF_WAIT_S`` in all."""
    window_s = BRIEF_WINDOW_S if brief or rough else WINDOW_S
    wait_s = BRIEF_WAIT_S if brief else math.inf
    return Quiet(window_s=window_s, patience=48, deadline_s=DEADLINE_S, wait_s=wait_s, rough=rough)


@background.measuring()
def measure(progress: Progress | None = None, *, quiet: Quiet | None = None, brief: bool = False) -> Peaks:
    """Measure this machine: bandwidths, arithmetic and transcendental rates, floors. Prints nothing, caches nothing.

    ``progress(what, done, total)`` is called before each figure. ``brief`` and rough ones are taken in one round. Cost:
    30 to 55 s, of one round 8, and up to a quarter of the memory; up to 15 s more if figures contradict each other:
    those are measured again, and what is contradicted still follows from the others (``Peaks.inferred``).
    Raises Ambiguous when other processes kept using more than 10% of the cores, BuildError without a compiler.
    """
    here = machine()
    quiet = quiet or quiet_windows(brief=brief)
    short = brief or quiet.rough
    if progress is not None:
        progress("building", 0, 1)
    with worker_pool(here.cores) as pool:  # compilers work beside each other
        lists = [
            pool.submit(_bandwidths, here),
            *(pool.submit(make, here, brief=short) for make in (_flops, _functions)),
        ]
        floors = pool.submit(_floors, here).result()
        bandwidth, flops, functions = (made.result() for made in lists)
    rounds = _rounds([*floors, *bandwidth, *flops, *functions], quiet, progress, brief=brief)
    dispatch, fork_join, page_fault = floors
    points = [*bandwidth, *flops, *functions]

    def record() -> Peaks:
        return dataclasses.replace(
            found, bandwidth=tuple(p.measured_record() for p in bandwidth),
            flops=tuple(p.measured_record() for p in flops), functions=tuple(p.measured_record() for p in functions),
        )  # fmt: skip

    found = Peaks(
        kind=here.kind,
        name=here.name,
        fingerprint=fingerprint(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cores=here.cores,
        bandwidth=(),
        flops=(),
        functions=(),
        dispatch_us=dispatch.best * 1e6,
        fork_join_us=fork_join.best * 1e6,
        page_fault_us=page_fault.best * 1e6,
        foreign_share=quiet.share,
        versions={"torch": torch.__version__, "compiler": toolchain(), "rounds": str(rounds)},
        cache_bytes=dict(here.cache_bytes),
    )
    _again(points, record, quiet, progress)
    return repair_record(record(), {point.name for point in points if point.loud})
