"""The one rule for a machine that others use too: what they took of the cores, and what that makes of a figure.

A neighbour's burst makes a peak read two or three times low and a two-thread kernel take multiples of a time slice.
Neither a median nor a minimum repairs that when the burst lasts, so samples are taken in short windows, and a window is
thrown away whole in which other processes (or the hypervisor, as steal) used more than a tenth of the cores, or kept
our threads off them for more than a twentieth of the time. If no window is left the result is *ambiguous*: it says
so in its first line, gives no figure, and the exit code is 3. Whoever asks for *rough* figures gets them all the same,
with wide intervals, and each line says that it is rough.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from kernelworks.measure.clock.work_beside import timed_section

__all__ = [
    "LIMIT",
    "MOST_KEPT",
    "QUIET",
    "Ambiguous",
    "CpuTimes",
    "Noise",
    "Quiet",
    "SampledWindows",
    "cpu_times",
    "far_apart",
    "foreign_share",
    "noise_between",
    "sample_windows",
    "with_noise",
]

T = TypeVar("T")
LIMIT = 0.10  # Others may use this share of the cores.
DELAY_LIMIT = 0.05  # Our threads may be without a core for this share of the wall clock.
FAR_APART = 3.0  # Runs this many times the shortest are far apart.
ROUGH_PATIENCE = 2  # Rough figures wait for so many windows.
WINDOW_S = 0.25  # The kernel accounts in ticks of 10 ms: shorter windows would read noise.
MOST_KEPT = 0.9  # of the wall clock is taken for others' at the most: some of it was the program's own
TICKS = 2  # A reading of the cores may be off by so many.


class Ambiguous(RuntimeError):
    """The machine was too busy to measure. ``share`` is what other processes used of the cores, or of another device,
    0 to 1."""

    def __init__(self, share: float, what: str = "", device: str = "the cores") -> None:
        self.share = share
        context = f" while measuring {what}" if what else ""
        super().__init__(f"ambiguous: other processes used {round(100 * share)}% of {device}{context}")


def far_apart(walls: Sequence[float]) -> bool:
    """Whether runs of one program differ so much that nothing can be predicted of the next one."""
    return max(walls) > FAR_APART * min(walls)


class CpuTimes(NamedTuple):
    """One reading: wall clock, busy time of the cores this process may use, own CPU time (seconds), the cores, and by
    thread of ours the seconds for which it could have run and had no core."""

    wall_s: float
    busy_s: float
    own_s: float
    cores: int
    delays: Mapping[int, float] = types.MappingProxyType({})


def cpu_times() -> CpuTimes:
    """Read ``/proc``: the cores, our threads' run delay, and the process clock. Steal counts as busy: those cycles were
    not ours."""
    cores = os.sched_getaffinity(0)
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    busy = ticks / os.sysconf("SC_CLK_TCK")
    return CpuTimes(time.monotonic(), busy, time.process_time(), len(cores), _delays())


def _delays() -> dict[int, float]:
    """Of the threads there are now; none if the kernel does not say."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread ended meanwhile
            found[int(task.name)] = int((task / "schedstat").read_bytes().split()[1]) / 1e9
    return found


def foreign_share(before: CpuTimes, after: CpuTimes) -> float:
    """Share of the cores, 0 to 1, that others used between two readings."""
    available = (after.wall_s - before.wall_s) * after.cores
    foreign = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, foreign / available)) if available > 0 else 0.0


@dataclass(frozen=True)
class Noise:
    """What others took between two readings: a share of the cores, and the seconds of the wall clock for which threads
    of ours had no core because of it."""

    share: float = 0.0
    taken_s: float = 0.0
    wall_s: float = 0.0
    during: str = ""  # what was measured then, if it is not what the reader takes it for

    @property
    def loud(self) -> bool:
        return self.share > LIMIT or self.taken_s > DELAY_LIMIT * self.wall_s

    @property
    def kept_share(self) -> float:
        """The share of the wall clock that threads of ours had no core for."""
        return min(MOST_KEPT, self.taken_s / self.wall_s) if self.wall_s else 0.0

    def __str__(self) -> str:
        kept, words = self.kept_share, []
        if self.share >= 0.01 or kept < 0.01:  # over a short time the cores say nothing
            words.append(f"used {round(100 * self.share)}% of the cores")
        if kept >= 0.01:
            words.append(f"kept this program off the cores for {round(100 * kept)}% of its time")
        return f"other processes {' and '.join(words)}{f' {self.during}' if self.during else ''}"


QUIET = Noise()


def noise_between(before: CpuTimes, after: CpuTimes) -> Noise:
    """Threads of ours that wait for each other (more of them than cores) are not kept off by others: what they had no
    core for counts only as far as there were cores that we did not use, and others that did. Of several threads the one
    that was kept off longest counts, since the others wait for it; the real figure may be up to their sum.

    The cores are counted in ticks, so over a short time they say little; the delay is exact.
    """
    wall = after.wall_s - before.wall_s
    available, own = wall * after.cores, after.own_s - before.own_s
    foreign = (after.busy_s - before.busy_s) - own
    slack = TICKS * 0.01 * after.cores
    share = foreign_share(before, after) if wall >= WINDOW_S else max(0.0, foreign - slack) / max(available, 1e-9)
    delay = max((seconds - before.delays.get(task, 0.0) for task, seconds in after.delays.items()), default=0.0)
    taken = min(delay, available - own, max(0.0, foreign) + slack)
    return Noise(min(1.0, share), max(0.0, min(taken, wall)), wall)


def with_noise(run: Callable[[], T]) -> tuple[T, Noise]:
    """What ``run`` gives, and what others took meanwhile."""
    before = cpu_times()
    found = run()
    return found, noise_between(before, cpu_times())


@dataclass(frozen=True)
class SampledWindows(Generic[T]):
    """Windows that were kept: their samples and noise, how many were thrown away, and whether the kept ones are loud
    because no quiet one came."""

    windows: tuple[tuple[T, ...], ...]
    noises: tuple[Noise, ...]
    thrown: int
    loud: bool

    @property
    def samples(self) -> tuple[T, ...]:
        return tuple(sample for window in self.windows for sample in window)

    @property
    def noise(self) -> Noise:
        """The middle one of the kept windows."""
        return sorted(self.noises, key=lambda n: (n.kept_share, n.share))[len(self.noises) // 2]


@timed_section()
def sample_windows(
    sample: Callable[[], T],
    wanted: int,
    *,
    window_s: float = 0.0,
    tries: int | None = None,
    least: int | None = None,
    deadline_s: float = float("inf"),
    enough_s: float = float("inf"),
    say: Callable[[str], None] | None = None,
) -> SampledWindows[T]:
    """Takes windows of samples (one each, or as many as fill ``window_s``) until ``wanted`` were quiet, ``tries`` were
    taken (by default three times as many), or ``deadline_s`` is over and ``least`` (by default those ``wanted``) were
    taken; after ``enough_s`` one quiet one will do. If not one is quiet all are kept, and the result is loud; it never
    raises on account of noise. ``say`` is told which window comes, as "2 of 3", and how many were disturbed."""
    begin = time.monotonic()
    kept: list[tuple[tuple[T, ...], Noise]] = []
    loud: list[tuple[tuple[T, ...], Noise]] = []
    while len(kept) < wanted and len(kept) + len(loud) < (tries or 3 * wanted):
        if (kept or loud) and time.monotonic() - begin > enough_s:
            wanted = 1
        if kept and len(kept) >= wanted:
            break
        enough = wanted if least is None else min(least, wanted)
        if len(loud) + len(kept) >= enough and time.monotonic() - begin > deadline_s:
            break
        if say is not None:
            disturbed = f", after {len(loud)} that others disturbed" if loud else ""
            say(f"{len(kept) + 1} of {wanted}{disturbed}")
        before, start, samples = cpu_times(), time.monotonic(), list[T]()
        while not samples or time.monotonic() - start < window_s:
            samples.append(sample())
        noise = noise_between(before, cpu_times())
        (loud if noise.loud else kept).append((tuple(samples), noise))
    taken = kept or loud
    return SampledWindows(tuple(s for s, _ in taken), tuple(n for _, n in taken), len(loud) if kept else 0, not kept)


class Quiet:
    """Collects samples in windows and throws the noisy ones away.

    ``patience``: so many noisy windows in a row and ``collect`` raises Ambiguous; so it does at ``deadline_s`` seconds
    after the object was made, and once noisy windows have taken ``wait_s`` in all. With ``rough`` it gives the least
    noisy of two windows instead; ``rough_windows`` counts those, and ``taken`` is the most that others used of the
    cores in one. ``times`` is the reader (tests pass their own). Afterwards ``kept_windows`` and ``thrown_windows``
    count windows and ``share`` is the mean foreign share of the kept ones.
    """

    def __init__(
        self,
        *,
        limit: float = LIMIT,
        window_s: float = WINDOW_S,
        patience: int = 16,
        deadline_s: float = float("inf"),
        wait_s: float = float("inf"),
        times: Callable[[], CpuTimes] = cpu_times,
        rough: bool = False,
    ) -> None:
        self.limit, self.window_s, self.times = limit, window_s, times
        self.patience = min(patience, ROUGH_PATIENCE) if rough else patience
        self.deadline, self.wait_left_s = time.monotonic() + deadline_s, wait_s
        self.rough, self.rough_windows, self.taken = rough, 0, 0.0
        self.shares: list[float] = []
        self.thrown_shares: list[float] = []

    @property
    def kept_windows(self) -> int:
        return len(self.shares)

    @property
    def thrown_windows(self) -> int:
        return len(self.thrown_shares)

    @property
    def share(self) -> float:
        return statistics.fmean(self.shares) if self.shares else 0.0

    def collect(self, sample: Callable[[], T], what: str = "") -> list[T]:
        """All samples of one quiet window, at least one. Raises Ambiguous when none comes."""
        best: tuple[float, list[T]] | None = None
        for _ in range(self.patience):
            before, samples, begin = self.times(), list[T](), time.monotonic()
            end = begin + self.window_s
            while not samples or time.monotonic() < end:
                samples.append(sample())
            noise = noise_between(before, self.times())
            share = noise.share
            if share <= self.limit and noise.taken_s <= DELAY_LIMIT * noise.wall_s:
                self.shares.append(share)
                return samples
            self.thrown_shares.append(share)
            if best is None or share < best[0]:
                best = share, samples
            self.wait_left_s -= time.monotonic() - begin
            if time.monotonic() > self.deadline or self.wait_left_s < 0:
                break
        if self.rough and best is not None:
            self.rough_windows += 1
            self.taken = max(self.taken, best[0])
            self.shares.append(best[0])
            return best[1]
        raise Ambiguous(statistics.median(self.thrown_shares[-self.patience :]), what)
