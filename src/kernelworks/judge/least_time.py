"""What no implementation can beat: the bytes that go in and come out, and the arithmetic, at what this machine was
measured to do. On a GPU, whose caches are emptied before each call, they come from its memory.

The bytes are the inputs' and the answers', once each, from the innermost cache that holds them. The arithmetic is that
of the reference's products, which another algorithm may need less of. An input that the reference only picks from, or
throws away, need not be read. So what refuses by itself is the bytes of inputs that an op must read whole: no clock may
show less than reading them takes, and no process has read them in less time of its cores than one core takes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.measure.roofline.bound import Bound, bottleneck_of, bound
from kernelworks.records import GpuPeaks, Peaks

__all__ = ["CallTime", "Limit", "limit"]

UNCERTAINTY_FACTOR = 3.0  # median deviations of an empty answer's time, within which a difference of two times is none
READINGS, READING_SHARE = 8, 0.5  # of what adding inputs up takes: much of that is reading them
BUSY_SHARE = 0.1  # share of the cores that others took, from which on measured peaks are rough
CLOCKS_DIFFER = 0.8  # of a limit, above which two clocks and two measurements may differ


@dataclass(frozen=True)
class CallTime:
    """What a call took by the clock and of the cores, each less what an empty answer takes, and how far that may be
    off: what is around a machine shows in the times of empty answers too."""

    seconds: float
    unsure_s: float
    cpu_s: float
    cpu_unsure_s: float

    @classmethod
    def of(
        cls, wall: Sequence[float], cpu: Sequence[float], nothing: Sequence[float], nothing_cpu: Sequence[float]
    ) -> CallTime:
        """Seconds of calls, by the clock and of the cores, and of empty answers."""
        return cls(*_apart(wall, nothing), *_apart(cpu, nothing_cpu))


def _apart(of: Sequence[float], nothing: Sequence[float]) -> tuple[float, float]:
    middles = [statistics.median(times) for times in (of, nothing)]
    off = [statistics.median(abs(t - m) for t in times) for times, m in zip((of, nothing), middles, strict=True)]
    return max(0.0, middles[0] - middles[1]), UNCERTAINTY_FACTOR * sum(off)


@dataclass(frozen=True)
class Limit:
    """``seconds`` is the least of the whole; ``moving_s`` what reading the inputs alone takes, and ``alone_s`` what it
    takes one core, 0 on a GPU."""

    whole: Bound
    moving_s: float
    alone_s: float
    arithmetic_s: float
    needed: float = 0.0  # bytes of the inputs that must be read
    busy: bool = False  # others used the cores while the peaks were measured

    @property
    def seconds(self) -> float:
        return self.whole.seconds

    def broken_by(self, took: CallTime, inputs: Sequence[Tensor] = ()) -> str:
        """Which law of nature a time is against, "" for none. If the peaks were measured on a busy machine, only
        if reading these inputs, here and now, takes longer too."""
        said = self._against(took)
        if said and inputs and self.busy:
            whole = sum(value.nbytes for value in inputs)
            least = READING_SHARE * reading_s(inputs) * self.needed / whole if whole else 0.0
            return said if min(took.cpu_s + took.cpu_unsure_s, took.seconds + took.unsure_s) < least else ""
        return said

    def _against(self, took: CallTime) -> str:
        if took.seconds + took.unsure_s < CLOCKS_DIFFER * self.moving_s:
            return f"{took.seconds:.3g} s a call, and reading its inputs takes {self.moving_s:.3g} s on this machine"
        if took.cpu_s + took.cpu_unsure_s < CLOCKS_DIFFER * self.alone_s:
            return (
                f"{took.cpu_s:.3g} s of a core a call, and reading its inputs takes one {self.alone_s:.3g} s on this "
                "machine: others work for it"
            )
        return ""

    def less_arithmetic(self, seconds: float) -> str:
        """Whether it must have found a way that needs less arithmetic."""
        if seconds < CLOCKS_DIFFER * self.arithmetic_s:
            return (
                f"{seconds:.3g} s a call, and the reference's arithmetic takes {self.arithmetic_s:.3g} s at this "
                "machine's peak: its answers are right, so it needs less of it"
            )
        return ""

    def bound_by(self, seconds: float) -> str:
        return bottleneck_of(self.whole, seconds)


def reading_s(inputs: Sequence[Tensor]) -> float:
    """What reading them takes of one core, at the least of some times."""
    flat = [value.reshape(-1).view(torch.uint8) for value in inputs]
    words = [value[: value.numel() // 4 * 4].view(torch.float32) for value in flat]
    found = []
    for _ in range(READINGS):
        begin = time.process_time_ns()
        for value in words:
            value.sum()
        found.append((time.process_time_ns() - begin) / 1e9)
    return min(found)


def limit(work: Mapping[str, Any], threads: int, peaks: Peaks | GpuPeaks) -> Limit:
    """Of the work that the process of the reference counted."""
    calls = work["calls"]
    inputs, weights = work["read"]
    flop = sum(c[1] for c in calls)
    none: list[Any] = ["", 0.0, 0.0, "float32", "exp"]
    busiest = max(calls, key=lambda c: c[1], default=none)
    called = max(calls, key=lambda c: c[2], default=none)
    moved, written = inputs + weights + work["written"], work["written"]
    on_gpu = isinstance(peaks, GpuPeaks)
    near_by, reach = (math.inf, math.inf) if on_gpu else (moved, inputs)  # what lies between two uses of a byte
    whole = bound(
        flop, sum(c[2] for c in calls), moved, near_by, busiest[3], threads, peaks,
        written_bytes=written, function=str(called[4]),
    )  # fmt: skip
    near, alone = (bound(0.0, 0.0, work["needed"], reach, "float32", n, peaks) for n in (threads, 1))
    alone_s = 0.0 if on_gpu else alone.terms["memory"]
    return Limit(
        whole, near.terms["memory"], alone_s, whole.terms["compute"], float(work["needed"]),
        isinstance(peaks, Peaks) and peaks.foreign_share > BUSY_SHARE,
    )  # fmt: skip
