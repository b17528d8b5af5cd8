"""How near a program runs to the measured peaks: one figure for the sentence, the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelworks.records import Diagnosis, Hotspot
from kernelworks.records.wall_clocks import CONTENTION

__all__ = ["AT_PEAK", "WIDER", "PeakShare", "own_s", "peak_share", "percents", "recorded_peak_share"]

AT_PEAK = "at peak"  # a part of the time breakdown
WIDER = 0.5  # each end of a rough interval moves out by this share of itself
VAGUE = 20.0  # above this percentage a rough interval is left out if its ends lie tenfold apart


@dataclass(frozen=True)
class PeakShare:
    """Of the time that the program had cores."""

    modelled: float  # the share of it that has a model
    achieved: float  # of that: the time that the work takes at peak; 0 if no peaks are known


def own_s(time_breakdown: Mapping[str, float], wall_s: float) -> float:
    """The program's own time of a wall clock: CPU contention is not its time."""
    return wall_s - time_breakdown.get(CONTENTION, 0.0)


def peak_share(time_breakdown: Mapping[str, float], hotspots: Iterable[Hotspot], wall_s: float) -> PeakShare:
    own = own_s(time_breakdown, wall_s)
    if own <= 0:
        return PeakShare(0.0, 0.0)
    unmodelled = sum(h.seconds for h in hotspots if not h.modelled and h.op != CONTENTION)
    modelled = 1 - min(1.0, unmodelled / own)
    at_peak = time_breakdown.get(AT_PEAK, 0.0)
    return PeakShare(modelled, at_peak / (own * modelled) if modelled else 0.0)


def percents(percent: float, own: float, walls_s: Sequence[float] = ()) -> str:
    """A share of the peak in words. With the runs of a rough measurement, whose ``own`` seconds are the program's:
    from the least to the most that it may be, and nothing if that is all or nothing."""
    if not walls_s:
        return f"{percent:.0f}%" if round(percent) else "under 1%"
    low = percent * min(1 / (1 + WIDER), own / max(walls_s))
    high = min(100.0, percent * max(1 + WIDER, own / min(walls_s)))
    if high > VAGUE and low < high / 10:
        return ""
    return f"{low:.0f}% to {high:.0f}%" if round(low) else f"under {max(1.0, high):.0f}%"


def recorded_peak_share(record: Diagnosis) -> str:
    """What a diagnosis on record achieved, in words; "" if others disturbed it too much to tell."""
    achieved = peak_share(record.time_breakdown, record.hotspots, record.wall_s).achieved
    runs = (record.walls_s or (record.wall_s,)) if record.rough else ()
    return percents(100 * min(1.0, achieved), own_s(record.time_breakdown, record.wall_s), runs)
