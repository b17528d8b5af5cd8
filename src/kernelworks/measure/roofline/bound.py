"""The least time that a piece of work can take on this machine, and what then bounds it.

T_min = max(dispatch or launch floor, flop / peak, bytes / bandwidth, elementary functions / rate)

Each term is what the machine was measured to do when it does nothing else, so no implementation is quicker than the
largest one; sum them and the result would be an estimate, not a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kernelworks.measure.roofline import gpu_terms
from kernelworks.records import GpuPeaks, Peaks

__all__ = ["RIDGE", "SHARE", "Bound", "applicable_bound", "bottleneck_of", "bound"]

SHARE = 0.6  # From this share of the measured time on, the largest term names the bottleneck.
RIDGE = 0.85  # Two terms this close to each other are a ridge.
DISPATCH_CALLS = 20  # A call that does less work than one dispatch and takes under 20 of them is host-bound.

# Which arithmetic a dtype can use: its own unit, and the float32 units that it is widened to.
UNITS = {
    "float32": ("float32",), "bfloat16": ("bfloat16", "float32"), "float16": ("float32",),
    "float64": ("float64",), "int8": ("int8", "float32"), "uint8": ("int8", "float32"),
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """``seconds`` is T_min; ``terms`` holds what it is the largest of: dispatch (on a GPU: launch), compute, memory,
    transcendental.

    ``bottleneck`` is the largest term's name ("memory DRAM", "compute", ...), or "ridge A/B" if the second is within
    15% of it; ``peak`` says in words and figures what limits, such as "DRAM read 83 GB/s"; ``level`` is the level
    of the memory hierarchy that most of the memory time is spent in ("L1" to "DRAM"; on a GPU "L2" or "HBM").
    """

    seconds: float
    bottleneck: str
    peak: str
    terms: dict[str, float]
    level: str


def _at(rates: dict[int, float], threads: int) -> float:
    """The rate on ``threads`` threads from those measured on 1 and on all: in proportion until the machine's is met."""
    most = max(rates)
    if threads >= most:
        return rates[most]
    return min(rates[most], rates[1] * threads)


def _peak(peaks: Peaks, dtype: str, threads: int, isa: str | None) -> tuple[float, str]:
    """GFLOP/s of the best unit for a dtype (of one instruction set, if given), and its name. 0 if there is none."""
    best, name = 0.0, ""
    for unit in UNITS.get(dtype, ("float32",)):
        found = [(f.isa, f.threads, f.gflops) for f in peaks.flops if f.dtype == unit]
        rate, candidate = _quickest(found, threads, isa)
        if rate > best:
            best, name = rate, f"{unit} {candidate}"
    return best, name


def _quickest(found: Iterable[tuple[str, int, float]], threads: int, isa: str | None) -> tuple[float, str]:
    """The best rate of (isa, threads, rate) at some threads, of what code of ``isa`` may use, and its instruction set.
    0 if there is none."""
    rates: dict[str, dict[int, float]] = {}
    for candidate, count, rate in found:
        if isa is None or _may_use(isa, candidate):
            rates.setdefault(candidate, {})[count] = rate
    best, name = 0.0, ""
    for candidate in sorted(rates):
        rate = _at(rates[candidate], threads)
        if rate > best:
            best, name = rate, candidate
    return best, name


def _may_use(isa: str, unit: str) -> bool:
    """Whether a kernel of one instruction set may use a unit: its own, or those that come with it."""
    with_it = {"avx512_bf16": ("avx512", "avx512_bf16"), "avx512": ("avx512", "avx512_vnni")}
    return unit in with_it.get(isa, (isa,))


def _levels(peaks: Peaks, footprint_bytes: float, threads: int) -> list[tuple[str, float]]:
    """Where the footprint's bytes come from: levels and shares. L1 and L2 are a core's own, L3 is shared.

    All of it from the innermost level that holds it; of an L3, which others share, only as much as it was measured with
    (in a virtual machine a copy fell from 95 to 39 GB/s between a quarter of the L3 and all of it). From there to twice
    the outermost cache part of it still hits (measured: reads of 1.5 times the L3 go at neither rate), so the share
    falls in a straight line.
    """
    last, beyond = "DRAM", 0.0
    for level in ("L1", "L2", "L3"):
        if level in peaks.cache_bytes:
            capacity = peaks.cache_bytes[level] * (1 if level == "L3" else min(threads, peaks.cores))
            held = _held(peaks, capacity) if level == "L3" else capacity
            if footprint_bytes <= held:
                return [(level, 1.0)]
            last, beyond = level, (footprint_bytes - held) / (2 * capacity - held)
    if last != "DRAM" and beyond < 1:
        return [("DRAM", beyond), (last, 1 - beyond)]
    return [("DRAM", 1.0)]


def _held(peaks: Peaks, capacity: int) -> int:
    """The bytes up to which the L3's rate was measured."""
    measured = [b.working_set_bytes * b.threads for b in peaks.bandwidth if b.level == "L3"]
    return min(max(measured), capacity) if measured else capacity


def _bandwidths(peaks: Peaks, level: str, threads: int) -> dict[str, float]:
    kinds: dict[str, dict[int, float]] = {}
    for b in peaks.bandwidth:
        if b.level == level:
            kinds.setdefault(b.kind, {})[b.threads] = b.gbs
    return {kind: _at(rates, threads) for kind, rates in kinds.items()}


def _memory(rates: dict[str, float], read_bytes: float, written_bytes: float) -> tuple[float, str]:
    """Seconds and the name of the peak.

    A read byte costs what it costs when only reading. A copied pair costs what the faster copy costs, so a written
    byte costs the rest of that pair; reads beyond the written bytes go at the read rate.
    """
    read, copy_kind = rates["read"], max(("copy", "copy_nt"), key=lambda k: rates[k])
    pairs = min(read_bytes, written_bytes)
    rest = max(read_bytes, written_bytes) - pairs
    paired_s = 2 * pairs / (rates[copy_kind] * 1e9)
    seconds = paired_s + rest / (read * 1e9)
    words = {"read": "read", "copy": "copy", "copy_nt": "non-temporal copy"}
    kind = copy_kind if paired_s > seconds / 2 else "read"
    return seconds, f"{words[kind]} {rates[kind]:.0f} GB/s"


def _functions(peaks: Peaks, function: str, threads: int, isa: str | None) -> tuple[float, str]:
    found = [(f.isa, f.threads, f.gops) for f in peaks.functions if f.function == function]
    rate, name = _quickest(found, threads, isa)
    return rate, f"{function} {name}" if name else ""


def bound(
    cost_flop: float,
    cost_transcendental: float,
    bytes: float,
    footprint_bytes: float,
    dtype: Any,
    threads: int,
    peaks: Peaks | GpuPeaks,
    isa: str | None = None,
    *,
    written_bytes: float = 0.0,
    function: str = "exp",
    launches: int = 1,
) -> Bound:
    """T_min of some work on ``threads`` threads, or on a GPU if the measured peaks are a GPU's.

    ``bytes`` are all compulsory bytes, of which ``written_bytes`` are written (they may use non-temporal stores);
    ``footprint_bytes`` is what is touched between two uses of the same byte, which decides the level: all rotating
    inputs and outputs of a warm benchmark, infinity for a cold cache. ``dtype`` is a torch dtype or its name and
    decides the arithmetic unit, the best of this machine or, with ``isa``, the best of that instruction set. For work
    that is no matrix product give float32, whatever the tensors are: dot-product units do nothing else.
    ``function`` is the elementary function counted. Cost: about 20 us.

    On a GPU ``threads`` and ``isa`` mean nothing, the work is ``launches`` kernels, peaks are those of a burst (power
    lowers them within a second), and bytes come from L2 if the footprint fits, else from device memory at the rate
    that a launch of that size reached. ``dtype`` may also be "tf32".
    """
    name = str(dtype).removeprefix("torch.")
    if isinstance(peaks, GpuPeaks):
        terms, texts, level = gpu_terms.terms(
            peaks, flop=cost_flop, transcendental=cost_transcendental, read=bytes - written_bytes,
            written=written_bytes, footprint_bytes=footprint_bytes, dtype=name, function=function, launches=launches,
        )  # fmt: skip
        return _largest(terms, texts, level)
    peak, unit = _peak(peaks, name, threads, isa)
    memory_s, level, rate_text = 0.0, "", ""
    for source, share in _levels(peaks, footprint_bytes, threads):
        rates = _bandwidths(peaks, source, threads)
        seconds, words = _memory(rates, share * (bytes - written_bytes), share * written_bytes)
        if not level or seconds > memory_s:
            level, rate_text = source, words
        memory_s += seconds
    rate, function_text = _functions(peaks, function, threads, isa)
    terms = {
        "dispatch": peaks.dispatch_us * 1e-6,
        "compute": cost_flop / (peak * 1e9) if peak else 0.0,
        "memory": memory_s,
        "transcendental": cost_transcendental / (rate * 1e9) if rate else 0.0,
    }
    texts = {
        "dispatch": f"dispatch {peaks.dispatch_us:.2f} us",
        "compute": f"{unit} {peak:.0f} GFLOP/s",
        "memory": f"{level} {rate_text}",
        "transcendental": f"{function_text} {rate:.1f} G/s",
    }
    return _largest(terms, texts, level)


FLOORS = ("dispatch", "launch")


def _largest(terms: dict[str, float], texts: dict[str, str], level: str) -> Bound:
    shown = {term: f"memory {level}" if term == "memory" else term for term in terms}
    first, second = sorted(terms, key=lambda t: -terms[t])[:2]
    close = terms[second] >= RIDGE * terms[first] and first not in FLOORS and second not in FLOORS
    return Bound(
        seconds=terms[first],
        bottleneck=f"ridge {shown[first]}/{shown[second]}" if close else shown[first],
        peak=texts[first],
        terms=terms,
        level=level,
    )


def applicable_bound(far: Bound, near: Bound, seconds: float) -> Bound:
    """Which of two bounds holds for work that took ``seconds``: ``far`` has its bytes come from the outermost level,
    ``near`` from the last cache (a footprint of infinity, and of 0).

    Work that was quicker than the far bound, by more than the tenth that two measurements may differ, had its bytes
    served by the cache: then the near one, whose bottleneck says so. If it was quicker even than that (a peak measured
    low, or bytes that were not moved), T_min is the time it took, so no share of a peak is above 1.
    """
    found = far if seconds >= 0.9 * far.seconds else near
    return found if seconds >= found.seconds else replace(found, seconds=seconds)


def bottleneck_of(limit: Bound, seconds: float) -> str:
    """What bounds work that took ``seconds``: "compute", "memory L1" to "memory DRAM", "transcendental",
    "ridge A/B", "dispatch" ("launch" on a GPU), or "latency": below the roofline, cause unknown.

    The bound's largest term names it if it explains at least 60% of the time. Below that nothing that was counted
    explains it, so it is never called memory or compute. It is "dispatch" if the work itself is less than one dispatch
    and the call takes under 20 of them, else "latency" (dependent operations, idle threads, poor occupancy).
    """
    if limit.seconds >= SHARE * seconds:
        return limit.bottleneck
    if limit.bottleneck in FLOORS and seconds < DISPATCH_CALLS * limit.seconds:
        return limit.bottleneck
    return "latency"
