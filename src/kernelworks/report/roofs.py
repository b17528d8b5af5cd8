"""The roofline's numbers, read off the peaks: one slope per memory level, one flat roof per dtype, ridge points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelworks.records import Bandwidth, GpuBandwidth, GpuPeaks, Hotspot, Peaks
from kernelworks.report import quantity

__all__ = [
    "LEVELS",
    "MachinePeaks",
    "Ridge",
    "Roof",
    "bandwidth",
    "best_flops",
    "labels",
    "large_transfers",
    "ridges",
    "roofs_in_use",
    "slopes",
    "slopes_in_use",
    "thread_counts",
]

LEVELS = ("L1", "L2", "L3", "DRAM")
MachinePeaks = Peaks | GpuPeaks


@dataclass(frozen=True)
class Roof:
    """The best measured rate of one dtype: name, instruction set, GFLOP/s."""

    dtype: str
    isa: str
    gflops: float


@dataclass(frozen=True)
class Ridge:
    """Where a slope meets a roof: from this many flop per byte on, compute is the limit and not this memory level."""

    level: str
    dtype: str
    flop_per_byte: float


def thread_counts(peaks: MachinePeaks) -> list[int]:
    """What was measured with, least first; a GPU counts as one."""
    if isinstance(peaks, GpuPeaks):
        return [1]
    return sorted({b.threads for b in peaks.bandwidth})


def bandwidth(peaks: Peaks, level: str, kind: str, threads: int) -> Bandwidth | None:
    found = (b for b in peaks.bandwidth if (b.level, b.kind, b.threads) == (level, kind, threads))
    return next(found, None)


def large_transfers(peaks: GpuPeaks) -> list[GpuBandwidth]:
    """What was measured cold over at least four times L2: of less, the time of an empty launch, which is taken off, is
    a part that says more than it should."""
    return [b for b in peaks.bandwidth if b.cache == "cold" and b.bytes >= 4 * peaks.l2_bytes]


def slopes(peaks: MachinePeaks, threads: int) -> dict[str, float]:
    """Read bandwidth in GB/s by level, from the innermost outwards."""
    if isinstance(peaks, GpuPeaks):
        reads = [b for b in peaks.bandwidth if b.kind == "read"]
        inside = [b.gbs for b in reads if b.cache == "warm" and b.bytes <= peaks.l2_bytes]
        outside = [b.gbs for b in large_transfers(peaks) if b.kind == "read"]
        return ({"L2": max(inside)} if inside else {}) | ({"HBM": max(outside)} if outside else {})
    found = {level: bandwidth(peaks, level, "read", threads) for level in LEVELS}
    return {level: item.gbs for level, item in found.items() if item is not None}


def best_flops(peaks: MachinePeaks, threads: int) -> list[Roof]:
    """The best rate of each dtype over the instruction sets, lowest first; of a GPU in a burst."""
    best: dict[str, Roof] = {}
    if isinstance(peaks, GpuPeaks):
        for r in sorted(peaks.rates, key=lambda r: r.burst_tflops):
            best[r.dtype] = Roof(r.dtype, r.unit, r.burst_tflops * 1e3)
        return sorted(best.values(), key=lambda roof: roof.gflops)
    for rate in peaks.flops:
        if rate.threads == threads and (rate.dtype not in best or rate.gflops > best[rate.dtype].gflops):
            best[rate.dtype] = Roof(rate.dtype, rate.isa, rate.gflops)
    return sorted(best.values(), key=lambda roof: roof.gflops)


# What a hotspot's shapes call a dtype -> what its roof is called.
ROOF_NAMES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "uint8": "int8",
    "qint8": "int8",
}


def roofs_in_use(tops: Sequence[Roof], hotspots: Sequence[Hotspot]) -> list[Roof]:
    """The roofs of the dtypes that the hotspots compute in; all of them if no hotspot says."""
    words: set[str] = set()
    for hotspot in hotspots:
        if hotspot.flop > 0:
            operands = [operand.split() for operand in hotspot.shapes.split(", ")]  # "f32 32x128", "f64 scalar"
            words |= {operand[0] for operand in operands if operand and operand[1:] != ["scalar"]}
            words |= set(hotspot.peak.split())
    names = {ROOF_NAMES.get(word, word) for word in words}
    return [roof for roof in tops if roof.dtype in names] or list(tops)


def slopes_in_use(slopes: dict[str, float], hotspots: Sequence[Hotspot]) -> dict[str, float]:
    """The memory levels that bound a hotspot, and always the outermost; all of them without hotspots."""
    if not hotspots or not slopes:
        return slopes
    words = {word for h in hotspots if h.flop > 0 for text in (h.peak, h.bottleneck) for word in text.split()}
    outermost = min(slopes, key=lambda level: slopes[level])
    return {level: gbs for level, gbs in slopes.items() if level == outermost or level in words}


MERGE_RATIO = 1.35  # roofs nearer to each other than this share one label: two would lie on each other


def labels(tops: Sequence[Roof]) -> list[tuple[float, str]]:
    """What to write at which height (GFLOP/s), the dtypes of roofs that nearly coincide side by side."""
    groups: list[list[Roof]] = []
    for roof in tops:
        if groups and roof.gflops < MERGE_RATIO * groups[-1][0].gflops:
            groups[-1].append(roof)
        else:
            groups.append([roof])
    return [(group[-1].gflops, ", ".join(_label(roof) for roof in reversed(group))) for group in groups]


def _label(roof: Roof) -> str:
    rate = quantity.gflops(roof.gflops)
    return f"{roof.dtype} {rate.replace('FLOP', 'op') if roof.dtype.startswith('int') else rate}"


def ridges(peaks: MachinePeaks, threads: int) -> list[Ridge]:
    """Every slope with every roof."""
    return [
        Ridge(level, roof.dtype, roof.gflops / gbs)
        for roof in best_flops(peaks, threads)
        for level, gbs in slopes(peaks, threads).items()
        if gbs > 0
    ]
