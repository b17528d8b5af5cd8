"""The terms of T_min on a GPU: launches, arithmetic, bytes from L2 or from device memory, elementary functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from kernelworks.records import GpuBandwidth, GpuPeaks

__all__ = ["L2", "MEMORY", "bandwidth", "l2_rate", "peak", "terms"]

L2, MEMORY = "L2", "HBM"


def peak(peaks: GpuPeaks, dtype: str) -> tuple[float, str]:
    """TFLOP/s of a dtype in a burst, the best of what was measured, and its unit. (0, "") if nothing was."""
    found = [(r.burst_tflops, r.unit) for r in peaks.rates if r.dtype == dtype]
    return max(found, default=(0.0, ""))


def _copies(kind: str) -> tuple[str, ...]:
    return ("copy", "memcpy") if kind == "copy" else (kind,)


def _curve(points: Iterable[GpuBandwidth], bytes: float) -> float:
    """GB/s at a size: in a straight line over the logarithm between the sizes measured, level beyond the last ones."""
    ordered = sorted((p.bytes, p.gbs) for p in points)
    if not ordered:
        return 0.0
    if bytes <= ordered[0][0]:
        return ordered[0][1]
    for (low, slow), (high, quick) in itertools.pairwise(ordered):
        if bytes <= high:
            along = math.log(bytes / low) / math.log(high / low)
            return slow + along * (quick - slow)
    return ordered[-1][1]


def bandwidth(peaks: GpuPeaks, kind: str, bytes: float) -> float:
    """GB/s of a launch that moves so many bytes from and to device memory, L2 holding none of them before.

    ``kind`` is "read", "write" or "copy"; of the two copies the faster one at that size.
    """
    return max(
        _curve((b for b in peaks.bandwidth if (b.kind, b.cache) == (name, "cold")), bytes) for name in _copies(kind)
    )


def l2_rate(peaks: GpuPeaks, kind: str) -> float:
    """GB/s within L2, the best working set's."""
    fits = (b for b in peaks.bandwidth if b.cache == "warm" and b.bytes <= peaks.l2_bytes)
    return max((b.gbs for b in fits if b.kind in _copies(kind)), default=0.0)


def _levels(peaks: GpuPeaks, footprint_bytes: float) -> list[tuple[str, float]]:
    """Where bytes come from, with shares: L2 while the footprint fits, part of it up to twice that, then memory."""
    beyond = footprint_bytes / peaks.l2_bytes - 1 if peaks.l2_bytes else math.inf
    if beyond <= 0:
        return [(L2, 1.0)]
    return [(MEMORY, 1.0)] if beyond >= 1 else [(MEMORY, beyond), (L2, 1 - beyond)]


def _memory(peaks: GpuPeaks, level: str, share: float, read: float, written: float) -> tuple[float, str]:
    """Seconds for this share of the bytes, and the name of the peak. A launch's size decides its rate."""

    def rate(kind: str) -> float:
        return l2_rate(peaks, kind) if level == L2 else bandwidth(peaks, kind, read + written)

    pairs, rest = min(read, written), abs(read - written)
    single = "read" if read >= written else "write"
    paired_s = 2 * pairs / (rate("copy") * 1e9) if pairs else 0.0
    rest_s = rest / (rate(single) * 1e9) if rest else 0.0
    kind = "copy" if paired_s > rest_s else single
    return share * (paired_s + rest_s), f"{level} {kind} {rate(kind):.0f} GB/s"


def terms(
    peaks: GpuPeaks,
    *,
    flop: float,
    transcendental: float,
    read: float,
    written: float,
    footprint_bytes: float,
    dtype: str,
    function: str,
    launches: int,
) -> tuple[dict[str, float], dict[str, str], str]:
    """Seconds by term, what limits each in words, and the level that most of the memory time is spent in."""
    tflops, unit = peak(peaks, dtype)
    memory_s, most_s, level, memory_text = 0.0, -1.0, "", ""
    for name, share in _levels(peaks, footprint_bytes):
        seconds, words = _memory(peaks, name, share, read, written)
        memory_s += seconds
        if seconds > most_s:
            most_s, level, memory_text = seconds, name, words
    rate = peaks.functions.get(function) or peaks.functions.get("exp", 0.0)
    seconds_of = {
        "launch": launches * peaks.launch_us * 1e-6,
        "compute": flop / (tflops * 1e12) if tflops else 0.0,
        "memory": memory_s,
        "transcendental": transcendental / (rate * 1e9) if rate else 0.0,
    }
    words_of = {
        "launch": f"launch {peaks.launch_us:.2f} us" + (f" x {launches}" if launches != 1 else ""),
        "compute": f"{dtype} {unit} {tflops:.0f} TFLOP/s",
        "memory": memory_text,
        "transcendental": f"{function} {rate:.0f} G/s",
    }
    return seconds_of, words_of, level
