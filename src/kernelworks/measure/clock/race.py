"""The race: all variants in turn, in quiet windows, over rotating inputs.

Two timers of the public can disagree 2.7 times on one kernel. What makes the difference is fixed here: the variants are
interleaved and their order is turned round every time (the second variant of a fixed pair reads 1 to 8% slow), inputs
rotate, windows with a busy neighbour are thrown away whole, and a warm and a cold cache are two different questions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernelworks.machine import machine
from kernelworks.measure.clock.noise import Quiet
from kernelworks.measure.clock.page_faults import minor_faults

__all__ = ["Race", "TimeStats", "race"]

Call = Callable[[int], object]  # runs a variant once on the input set of that number

SAMPLE_S = 0.004  # A warm sample repeats a call for this long, well above the clock's own cost.
LEAST_ROUNDS, OF_LONG_CALLS = 7, 5
WARM_UP = 4  # So many calls come before anything is timed: glibc stops faulting after the third.
WARM_S = 0.5  # Or they take this long: page faults are a small part of such a call.


@dataclass(frozen=True)
class TimeStats:
    """Seconds a call of one variant."""

    median: float
    low: float  # 10th percentile, or the least of rough samples
    high: float  # 90th percentile, or the most
    samples: int


@dataclass(frozen=True)
class Race:
    """``samples`` holds seconds a call, by variant, in the order they were taken: one of every variant a round."""

    samples: dict[str, list[float]]
    thrown: int  # windows
    faults: int  # minor page faults in the kept windows
    taken: float = 0.0  # of the cores, by others, at most, in windows that were kept because no quiet one came: rough

    def stats(self, variant: str) -> TimeStats:
        """Of rough samples the interval goes from the least to the most."""
        ordered = sorted(self.samples[variant])
        low, high = (0.0, 1.0) if self.taken else (0.1, 0.9)
        return TimeStats(
            statistics.median(ordered), _percentile(ordered, low), _percentile(ordered, high), len(ordered)
        )

    def ratio(self, slow: str, quick: str) -> float:
        """Median of ``slow`` over median of ``quick``."""
        return statistics.median(self.samples[slow]) / statistics.median(self.samples[quick])

    def __add__(self, other: Race) -> Race:
        both = {name: found + other.samples[name] for name, found in self.samples.items()}
        return Race(both, self.thrown + other.thrown, self.faults + other.faults, max(self.taken, other.taken))


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Evictor:
    """Twice the last cache level, written over: nothing of the variants' data is left in any cache."""

    def __init__(self) -> None:
        largest = max((size for _, size in machine().cache_bytes), default=32 << 20)
        self.buffer = torch.zeros(max(1, 2 * largest // 4), dtype=torch.float32, device="cpu")

    def __call__(self) -> None:
        self.buffer.add_(1.0)


def race(
    variants: Mapping[str, Call],
    sets: int,
    *,
    budget_s: float = 0.6,
    cold: bool = False,
    pause_s: float = 0.0,
    enough_s: float = math.inf,
    quiet: Quiet | None = None,
) -> Race:
    """Times every variant over the input sets 0 to ``sets`` - 1, ``budget_s`` seconds a variant, at least 7 rounds; or
    5 if more would take longer than ``enough_s``.

    Warm: a sample is the mean of enough calls to fill 4 ms, the sets in rotation. Cold: a sample is one call after
    the caches were overwritten. ``pause_s``: a pause before each sample, see ``_pause_and_wake``.
    Raises Ambiguous when the machine stays busy and ``quiet`` does not take rough windows.
    """
    quiet = quiet or Quiet(patience=40)
    evict = _Evictor() if cold else None
    repeats = {name: _repeats(call, sets) if evict is None else 1 for name, call in variants.items()}
    order, turn = list(variants), [0]

    def one_round() -> dict[str, float]:
        found = {}
        for name in order:
            call, count = variants[name], repeats[name]
            if evict is not None:
                evict()
            first = turn[0]
            if pause_s > 0:
                _pause_and_wake(call, first, sets, pause_s)
            begin = time.perf_counter()
            for i in range(first, first + count):
                call(i % sets)
            found[name] = (time.perf_counter() - begin) / count
        order.reverse()
        turn[0] += 1
        return found

    rounds: list[dict[str, float]] = []
    begin, thrown_before = time.monotonic(), quiet.thrown_windows
    faults, took = 0, 0.0
    while took < budget_s * len(variants) or len(rounds) < (LEAST_ROUNDS if took < enough_s else OF_LONG_CALLS):
        before = minor_faults()
        rounds += quiet.collect(one_round, "a race")
        faults += minor_faults() - before
        took = time.monotonic() - begin
    samples = {name: [found[name] for found in rounds] for name in variants}
    return Race(samples, quiet.thrown_windows - thrown_before, faults, quiet.taken)


def _pause_and_wake(call: Call, first: int, sets: int, seconds: float) -> None:
    """For variants of several threads: lets those of the variant before fall asleep, then wakes this one's. In the
    first milliseconds after a pause both threads of a pool may share one core, whoever's pool it is."""
    time.sleep(seconds)
    end = time.perf_counter() + seconds / 2
    while True:
        first -= 1
        call(first % sets)
        if time.perf_counter() >= end:
            return


def _repeats(call: Call, sets: int) -> int:
    """Calls that fill a sample, after the warm-up."""
    warm = time.perf_counter() + WARM_S
    for i in range(WARM_UP):
        call(i % sets)
        if time.perf_counter() > warm:
            break
    count = 1
    while True:
        begin = time.perf_counter()
        for i in range(count):
            call(i % sets)
        seconds = time.perf_counter() - begin
        if seconds >= SAMPLE_S / 2:
            return max(1, round(count * SAMPLE_S / seconds))
        count *= 2
