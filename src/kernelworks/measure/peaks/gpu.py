"""Measure what this GPU can do: memory at every size, matrix units in a burst, after a second and in a race, functions,
floors.

Device times come from CUDA events. A figure is the 90th percentile of its samples' rates, as on the CPU: not one lucky
sample, and not what a hiccup left of it. The matrix units are measured through torch (cuBLAS), which is what a program
gets; memory and functions with kernels of our own.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import background
from kernelworks.build.kernels import triton_toolchain
from kernelworks.machine import Gpu, gpu, utilization
from kernelworks.measure.clock.cuda_events import Evictor, cuda_event, seconds_between, timed_cold
from kernelworks.measure.clock.noise import LIMIT, Ambiguous
from kernelworks.measure.peaks.mending import doubts, repair_record
from kernelworks.measure.peaks.relations import FLOORS
from kernelworks.measure.peaks.survey import Progress, percentile_90
from kernelworks.records import GpuBandwidth, GpuPeaks, GpuRate

__all__ = ["fingerprint", "measure", "unmeasured_gpu_peaks"]

GPU_KERNELS = Path(__file__).resolve().parents[1] / "clock" / "gpu_kernels.py"  # imports Triton: a CPU has none
MIB = 1 << 20
WARM_MIB = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
COLD_MIB = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
BUFFER_BYTES = 1024 * MIB
COLD_SAMPLES, WARM_SAMPLES = 15, 5
WARM_BYTES = 2048 * MIB  # A warm sample moves at least this much, by repeated passes.
SUSTAINED_S = 1.2  # Matrix products run this long; the rate is that of the second half.
IDLE_S = 0.1  # The GPU idles this long before a burst.
RACE_S, MAX_RACE_CALLS = 0.5, 2000  # A race of products takes at most this long and so many calls.
SIDES = (4096, 8192)  # Square products: the better side gives burst and race, the second the sustained rate.
SEEN_S = 1.1  # The driver counts a GPU's use over up to a second.
KERNELS = 700  # A queue holds so many; the driver takes 1024 before a launch waits.


@functools.cache
def fingerprint() -> str:
    """What a GPU's peaks depend on, as 20 hexadecimal digits: the card, driver, power limit, torch, our kernels."""
    here = gpu()
    parts = [here.uuid, here.name, here.driver, f"{here.power_limit_w:.0f}", torch.__version__, triton_toolchain()]
    parts += [path.read_text(encoding="utf-8") for path in (Path(__file__), GPU_KERNELS)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


# ---------------------------------------------------------------- timing


def _timed(run: Callable[[], object], samples: int, times: int = 1) -> list[float]:
    """Seconds a run, ``times`` of them in a sample."""
    pairs = []
    for _ in range(samples):
        begin, end = cuda_event(), cuda_event()
        begin.record()
        for _ in range(times):
            run()
        end.record()
        pairs.append((begin, end))
    return [seconds / times for seconds in seconds_between(pairs)]


def _rate(work: float, seconds: list[float]) -> float:
    """10^9 of the work a second."""
    return percentile_90([work / s / 1e9 for s in seconds])


# ---------------------------------------------------------------- memory


class _Memory:
    """Two buffers, and launches over their first bytes."""

    def __init__(self, here: Gpu, evict: Evictor, empty_s: float) -> None:
        from kernelworks.measure.clock import gpu_kernels as kernels

        self.kernels, self.here, self.evict, self.empty_s = kernels, here, evict, empty_s
        self.most = min(BUFFER_BYTES, 1 << (here.memory_bytes // 8).bit_length() - 1)  # bytes of a buffer
        self.source = torch.empty(self.most // 4, device="cuda").uniform_()
        self.target = torch.empty_like(self.source)
        self.sums = torch.empty(self.most // 4 // kernels.TILE, device="cuda")

    def launch(self, kind: str, bytes: int, passes: int, grid: int) -> Callable[[], object]:
        count = bytes // (2 if kind in ("copy", "memcpy") else 1) // 4
        tiles = count // self.kernels.TILE
        shape = (min(grid, tiles), 1, 1)
        if kind == "read":
            return lambda: self.kernels.READ(shape, self.source, self.sums, tiles, passes)
        if kind == "write":
            return lambda: self.kernels.WRITE(shape, self.target, 1.0, tiles, passes)
        if kind == "copy":
            return lambda: self.kernels.COPY(shape, self.source, self.target, tiles, passes)
        source, target = self.source[:count], self.target[:count]
        return lambda: target.copy_(source)

    def cold(self, kind: str, bytes: int) -> GpuBandwidth:
        """With a few programs a multiprocessor or one a tile, less what an empty launch takes between two events."""
        rates = []
        for grid in (
            (4 * self.here.multiprocessors, 16 * self.here.multiprocessors, 1 << 30) if kind != "memcpy" else (1,)
        ):
            run = self.launch(kind, bytes, 1, grid)
            run()
            seconds = timed_cold(run, self.evict, COLD_SAMPLES)
            rates.append(_rate(bytes, [max(s - self.empty_s, s / 4) for s in seconds]))
        return GpuBandwidth(kind, "cold", bytes, max(rates))

    def warm(self, kind: str, bytes: int) -> GpuBandwidth:
        passes = max(1, WARM_BYTES // bytes) | 1  # odd: one compiled kernel serves, see build.triton
        rates = []
        for programs in (2, 4):  # a multiprocessor
            run = self.launch(kind, bytes, passes, programs * self.here.multiprocessors)
            run()
            rates.append(_rate(bytes * passes, _timed(run, WARM_SAMPLES)))
        return GpuBandwidth(kind, "warm", bytes, max(rates))


def _bandwidths(memory: _Memory, step: Callable[[str], None]) -> tuple[GpuBandwidth, ...]:
    found = []
    for kind in ("read", "write", "copy", "memcpy"):
        for size in COLD_MIB:
            bytes = size * MIB
            if bytes <= memory.most * (2 if kind in ("copy", "memcpy") else 1):
                step(f"{kind} {size} MiB from memory")
                found.append(memory.cold(kind, bytes))
        for size in WARM_MIB if kind != "memcpy" else ():
            if size * MIB <= memory.most:
                step(f"{kind} {size} MiB again and again")
                found.append(memory.warm(kind, size * MIB))
    return tuple(found)


def _transfers() -> tuple[float, float]:
    """GB/s from and to pinned memory of the host."""
    there = torch.empty(128 * MIB // 4, device="cuda")
    here = torch.zeros(there.numel(), device="cpu", pin_memory=True)
    to_device = _rate(there.nbytes, _timed(lambda: there.copy_(here, non_blocking=True), 5))
    to_host = _rate(there.nbytes, _timed(lambda: here.copy_(there, non_blocking=True), 5))
    return to_device, to_host


# ---------------------------------------------------------------- arithmetic


def _product(dtype: str, side: int) -> Callable[[], object]:
    """A product of two square matrices of normal values: zeros would draw less power and run faster."""
    a, b = (torch.randn(side, side, device="cuda") for _ in range(2))
    if dtype.startswith("float8"):
        kind = getattr(torch, dtype)
        left, right, one = a.to(kind), b.to(kind).t(), torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    left, right = a.to(kind), b.to(kind)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _measure_product_rates(dtype: str, evict: Evictor, empty_s: float) -> tuple[float, float, float]:
    """TFLOP/s. Raises RuntimeError if torch has no such product on this GPU."""
    best, run, flop = 0.0, None, 0.0
    for side in SIDES:
        run, flop = _product(dtype, side), 2.0 * side**3
        seconds = statistics.median(_timed(run, 2))
        time.sleep(IDLE_S)
        times = max(1, min(8, int(0.004 / seconds)))
        best = max(best, _rate(flop, _timed(run, 5, times)) / 1e3)
    assert run is not None
    each = _timed(run, max(4, int(SUSTAINED_S / (flop / best / 1e12))))
    second_half = each[len(each) // 2 :]
    sustained = flop * len(second_half) / sum(second_half) / 1e12
    race_rate = max(_race_rate(_product(dtype, side), 2.0 * side**3, best, evict, empty_s) for side in SIDES)
    return best, sustained, race_rate


def _race_rate(run: Callable[[], object], flop: float, burst: float, evict: Evictor, empty_s: float) -> float:
    """TFLOP/s between two events, as a call is timed, L2 filled before: the median of the second half of some tenths of
    a second. What it lost to the limit of power it would lose more of, were there nothing in between."""
    between = statistics.median(_timed(evict, 5))
    about = statistics.median(timed_cold(run, evict, 3))
    each = timed_cold(run, evict, max(8, min(MAX_RACE_CALLS, int(RACE_S / about))))
    seconds = statistics.median(each[len(each) // 2 :]) - empty_s
    return burst - (burst - flop / seconds / 1e12) * (seconds + between) / seconds


def _products(evict: Evictor, empty_s: float, step: Callable[[str], None]) -> list[GpuRate]:
    found = []
    for dtype in ("bfloat16", "float16", "tf32", "float32", "float8_e4m3fn"):
        step(f"{dtype} products")
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            burst, sustained, race_rate = _measure_product_rates(dtype, evict, empty_s)
        except RuntimeError:
            continue  # a GPU without this dtype's units
        finally:
            torch.set_float32_matmul_precision(before)
        unit = "torch._scaled_mm" if dtype.startswith("float8") else "torch.mm"
        found.append(GpuRate(dtype, unit, burst, sustained, race_rate))
    return found


def _chains(here: Gpu, step: Callable[[str], None]) -> tuple[GpuRate, dict[str, float]]:
    """Multiply-adds outside the matrix units, and elementary functions, each as a chain in registers."""
    from kernelworks.measure.clock import gpu_kernels as kernels

    programs, rounds = 16 * here.multiprocessors, 1024
    target = torch.empty(programs * kernels.LANES, device="cuda")
    count = float(programs * kernels.LANES * rounds)

    def multiply_add() -> None:
        kernels.MULTIPLY_ADD((programs, 1, 1), target, 0.999, 0.001, rounds)

    step("float32 multiply-adds")
    multiply_add()
    burst = _rate(32 * count, _timed(multiply_add, 7)) / 1e3
    each = _timed(multiply_add, max(8, int(0.5 / (32 * count / burst / 1e12))))[-4:]
    rate = GpuRate("float32", "multiply-add", burst, 32 * count / statistics.median(each) / 1e12)
    functions = {}
    for name, kernel in kernels.FUNCTION.items():
        step(name)
        run = functools.partial(kernel, (programs, 1, 1), target, rounds)
        run()
        functions[name] = _rate(8 * count, _timed(run, 7))
    return rate, functions


# ---------------------------------------------------------------- floors


def _host_us(run: Callable[[], object], count: int = 500, rounds: int = 5) -> float:
    """Host time a call, the best round's: a burst shorter than the driver's queue, which never makes a call wait."""
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            run()
        found.append((time.perf_counter() - begin) / count)
    torch.cuda.synchronize()
    return min(found) * 1e6


def _queued_us(run: Callable[[], object], clock: float = 2e9) -> float:
    """Device time of one more kernel in a full queue: all are queued behind a wait, so the host is out of it."""
    found = []
    sleep: Any = torch.cuda._sleep  # without annotations
    for _ in range(5):
        sleep(int(0.012 * clock))
        begin, end = cuda_event(), cuda_event()
        begin.record()
        for _ in range(KERNELS):
            run()
        end.record()
        found += seconds_between([(begin, end)])
    return min(found) / KERNELS * 1e6


def _floors(evict: Evictor) -> dict[str, float]:
    from kernelworks.measure.clock import gpu_kernels as kernels

    a, b, out = (torch.ones(1, device="cuda") for _ in range(3))

    def nothing() -> None:
        kernels.NOTHING((1, 1, 1), a)

    def add() -> Tensor:
        return torch.add(a, b, out=out)

    def round_trip() -> None:
        nothing()
        torch.cuda.synchronize()

    nothing()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(KERNELS):
            nothing()
    graph.replay()
    with torch.inference_mode():
        dispatch = _host_us(add)
    return {
        "launch_us": _queued_us(nothing),
        "isolated_us": statistics.median(timed_cold(nothing, evict, 25)) * 1e6,
        "graph_us": min(_timed(graph.replay, 5)) / KERNELS * 1e6,
        "host_launch_us": _host_us(nothing),
        "dispatch_us": dispatch,
        "round_trip_us": _host_us(round_trip, count=100),
    }


# ---------------------------------------------------------------- all of it


def _again(record: GpuPeaks, memory: _Memory, step: Callable[[str], None]) -> GpuPeaks:
    """What others contradict measured again, the better of both: noise slows."""
    doubted, empty_s = doubts(record), record.isolated_us / 1e6
    changed: dict[str, Any] = {}
    if any(b.name in doubted for b in record.bandwidth):
        step("memory again")
        changed["bandwidth"] = tuple(
            max(b, getattr(memory, b.cache)(b.kind, b.bytes), key=lambda each: each.gbs) if b.name in doubted else b
            for b in record.bandwidth
        )
    arithmetic = {f"{r.name} {how}" for r in record.rates for how in ("burst", "sustained", "benchmarked")}
    if doubted.keys() & (arithmetic | set(record.functions)):
        fused, functions = _chains(memory.here, step)
        now = {rate.name: rate for rate in (fused, *_products(memory.evict, empty_s, step))}
        changed["rates"] = tuple(max(r, now.get(r.name, r), key=lambda each: each.burst_tflops) for r in record.rates)
        changed["functions"] = {name: max(rate, functions[name]) for name, rate in record.functions.items()}
    if doubted.keys() & set(FLOORS):
        step("floors again")
        changed |= {name: min(getattr(record, name), took) for name, took in _floors(memory.evict).items()}
    return dataclasses.replace(record, **changed)


def others_share(here: Gpu) -> float:
    """The share of about a second in which other processes had kernels on the GPU: this one gives it nothing. 0 if
    nobody says."""
    torch.cuda.synchronize()
    time.sleep(SEEN_S)
    return utilization(here.uuid) or 0.0


def unmeasured_gpu_peaks(why: str) -> GpuPeaks:
    """What can be said of this GPU without a measurement. ``why`` nothing was measured."""
    here = gpu()
    floors: dict[str, Any] = dict.fromkeys(FLOORS, 0.0)
    return GpuPeaks(
        kind=here.kind, name=here.name, fingerprint="", uuid=here.uuid, driver=here.driver,
        power_limit_w=here.power_limit_w, date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        multiprocessors=here.multiprocessors, l2_bytes=here.l2_bytes, memory_bytes=here.memory_bytes,
        bandwidth=(), rates=(), functions={}, to_device_gbs=0.0, to_host_gbs=0.0, seconds=0.0,
        versions={"torch": torch.__version__}, unknown=why, **floors,
    )  # fmt: skip


def measure(progress: Progress | None = None, *, rough: bool = False) -> GpuPeaks:
    """Measures the current GPU. Prints nothing and caches nothing.

    ``progress(what, done, total)`` is called before each figure. Cost: some 20 s, and up to 2.5 GiB of its memory.
    With ``rough`` a GPU that others use is measured all the same, and ``foreign_share`` says what they took. Raises
    Ambiguous if others use it, RuntimeError without a GPU or without so much memory, BuildError without Triton or a C++
    compiler.
    """
    here = gpu()
    if progress is not None:
        progress("whether other processes use this GPU", 0, 1)
    before = others_share(here)
    if before > LIMIT and not rough:
        raise Ambiguous(before, device="this GPU")
    record = _measured(here, progress)
    share = max(before, others_share(here))
    if share > LIMIT and not rough:
        raise Ambiguous(share, "its peak rates", device="this GPU")
    return dataclasses.replace(record, foreign_share=share)


@background.measuring()
def _measured(here: Gpu, progress: Progress | None) -> GpuPeaks:
    begin = time.monotonic()
    total = 4 * len(COLD_MIB) + 3 * len(WARM_MIB) + 12
    done = 0

    def step(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(what, done, total)
        done += 1

    step("floors")
    evict = Evictor(here)
    floors: dict[str, Any] = _floors(evict)
    memory = _Memory(here, evict, floors["isolated_us"] / 1e6)
    bandwidth = _bandwidths(memory, step)
    step("transfers")
    to_device, to_host = _transfers()
    fused, functions = _chains(here, step)
    rates = (fused, *_products(evict, floors["isolated_us"] / 1e6, step))
    torch.cuda.empty_cache()
    record = GpuPeaks(
        kind=here.kind, name=here.name, fingerprint=fingerprint(), uuid=here.uuid, driver=here.driver,
        power_limit_w=here.power_limit_w, date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        multiprocessors=here.multiprocessors, l2_bytes=here.l2_bytes, memory_bytes=here.memory_bytes,
        bandwidth=bandwidth, rates=rates, functions=functions, to_device_gbs=to_device, to_host_gbs=to_host,
        seconds=time.monotonic() - begin,
        versions={"torch": torch.__version__, "cuda": str(torch.version.cuda), "compiler": triton_toolchain()},
        **floors,
    )  # fmt: skip
    return repair_record(_again(record, memory, step))
