"""The least time for a call's work on this machine, with each input at the level of memory where it lies."""

from __future__ import annotations

import dataclasses
import functools
import math

from kernelworks.measure.roofline.bound import RIDGE, Bound, bound
from kernelworks.profile.cost import Work
from kernelworks.records import Peaks

__all__ = ["limit"]


def limit(work: Work, far: float, threads: int, peaks: Peaks) -> Bound:
    """T_min of the work: ``far`` of what it reads comes from DRAM, the rest from the level that the call fits in.

    The terms are those of ``peaks.bound``; the two kinds of reads take turns on the same cores, so they add.
    """
    return _limit(work, round(far, 2), threads, _Held(peaks))


class _Held:
    """Measured peaks as a key: they hold dictionaries, so they have no hash of their own."""

    def __init__(self, peaks: Peaks) -> None:
        self.peaks = peaks

    def __hash__(self) -> int:
        return hash(self.peaks.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.peaks is other.peaks


@functools.lru_cache(maxsize=65536)
def _limit(work: Work, far: float, threads: int, held: _Held) -> Bound:
    peaks = held.peaks
    near_read, far_read = work.read * (1 - far), work.read * far
    near = bound(
        work.flop, work.transcendental, near_read + work.written, near_read + work.written, work.dtype, threads,
        peaks, written_bytes=work.written, function=work.function,
    )  # fmt: skip
    if not far_read:
        return near
    distant = bound(0.0, 0.0, far_read, math.inf, work.dtype, threads, peaks)
    terms = near.terms | {"memory": near.terms["memory"] + distant.terms["memory"]}
    farther = distant.terms["memory"] >= near.terms["memory"]
    level = "DRAM" if farther else near.level
    first, second = sorted(terms, key=lambda t: -terms[t])[:2]
    shown = {t: f"memory {level}" if t == "memory" else t for t in terms}
    close = terms[second] >= RIDGE * terms[first] and "dispatch" not in (first, second)
    if first == "memory":
        peak = distant.peak if farther and distant.terms["memory"] >= distant.terms["dispatch"] else near.peak
        peak = peak if level in peak else f"{level} read"
    else:
        peak = near.peak if near.bottleneck.startswith(first) else first
    return dataclasses.replace(
        near,
        seconds=terms[first],
        bottleneck=f"ridge {shown[first]}/{shown[second]}" if close else shown[first],
        peak=peak,
        terms=terms,
        level=level,
    )
