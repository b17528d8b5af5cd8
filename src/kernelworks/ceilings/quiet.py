"""Timing on a machine that others use too: watch what share of the cores they took, keep only quiet windows.

A neighbour's burst makes a peak read two or three times low and a two-thread kernel take multiples of a time slice.
Neither a median nor a minimum repairs that when the burst lasts, so samples are taken in short windows and a window
in which other processes (or the hypervisor, as steal) used more than a tenth of the cores is thrown away whole.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["Ambiguous", "CpuTimes", "Quiet", "cpu_times", "foreign_share"]

T = TypeVar("T")
LIMIT = 0.10  # of the cores
WINDOW_S = 0.25  # the kernel accounts in ticks of 10 ms: shorter windows would read noise


class Ambiguous(RuntimeError):
    """The machine was too busy to measure. ``share`` is what other processes used of the cores, 0 to 1."""

    def __init__(self, share: float, what: str = "") -> None:
        self.share = share
        context = f" while measuring {what}" if what else ""
        super().__init__(f"ambiguous: other processes used {round(100 * share)}% of the cores{context}")


class CpuTimes(NamedTuple):
    """One reading: wall clock, busy time of the cores this process may use, own CPU time (seconds), and the cores."""

    wall_s: float
    busy_s: float
    own_s: float
    cores: int


def cpu_times() -> CpuTimes:
    """Read ``/proc/stat`` and the process clock. Steal counts as busy: those cycles were not ours."""
    cores = os.sched_getaffinity(0)
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return CpuTimes(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), len(cores))


def foreign_share(before: CpuTimes, after: CpuTimes) -> float:
    """Share of the cores, 0 to 1, that others used between two readings."""
    available = (after.wall_s - before.wall_s) * after.cores
    foreign = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, foreign / available)) if available > 0 else 0.0


class Quiet:
    """Collects samples in windows and throws the noisy ones away.

    ``patience``: so many noisy windows in a row and ``collect`` raises Ambiguous; so it does at ``deadline_s`` seconds
    after the object was made. ``times`` is the reader (tests pass their own). Afterwards ``kept`` and ``thrown`` count
    windows and ``share`` is the mean foreign share of the kept ones.
    """

    def __init__(
        self,
        *,
        limit: float = LIMIT,
        window_s: float = WINDOW_S,
        patience: int = 16,
        deadline_s: float = float("inf"),
        times: Callable[[], CpuTimes] = cpu_times,
    ) -> None:
        self.limit, self.window_s, self.patience, self.times = limit, window_s, patience, times
        self.deadline = time.monotonic() + deadline_s
        self.shares: list[float] = []
        self.thrown_shares: list[float] = []

    @property
    def kept(self) -> int:
        return len(self.shares)

    @property
    def thrown(self) -> int:
        return len(self.thrown_shares)

    @property
    def share(self) -> float:
        return statistics.fmean(self.shares) if self.shares else 0.0

    def collect(self, sample: Callable[[], T], what: str = "") -> list[T]:
        """All samples of one quiet window, at least one. Raises Ambiguous when none comes."""
        for _ in range(self.patience):
            before, samples = self.times(), list[T]()
            end = time.monotonic() + self.window_s
            while not samples or time.monotonic() < end:
                samples.append(sample())
            share = foreign_share(before, self.times())
            if share <= self.limit:
                self.shares.append(share)
                return samples
            self.thrown_shares.append(share)
            if time.monotonic() > self.deadline:
                break
        raise Ambiguous(statistics.median(self.thrown_shares[-self.patience :]), what)
