"""Two ways to do the same work, timed as whoever calls them waits: is the one quicker, and is that certain?

``race`` (``bench/timing.py``) gives figures to be quoted, and takes seconds for them. Here one bit is wanted, whether
ours beats torch by ``MARGIN``, and what it costs is paid before a program runs; so what is clear ends early.

- A sample is a queue of calls and the wait for its end, by the wall clock: host time, launches and allocations count.
- The arms take turns, and whoever goes first changes every round. What is judged is the ratio within a round, which a
  neighbour that slows both arms leaves alone.
- Rounds in which other processes kept our threads off the cores are left out (``ceilings.quiet`` has the rule), as long
  as others come. Where too few come, a race of several threads is not believed, since noise does not hit both arms
  alike: what is held up goes on on one thread here (``build/sharing.py``), and in torch it does not.
- The rounds are cut into two halves in time, and each must say so for itself.
- ``spread`` is by how much the quicker arm's time varied from round to round, as a share of the slower arm's: half the
  distance between the quartiles, or between the halves where that is more. Over ``NOISY`` nothing is believed: the race
  is run again, ``AGAIN`` times at most. (Of the slower arm's, so that 16 times as quick, give or take 4, is certain.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelworks.ceilings import quiet
from kernelworks.timings import MARGIN, Raced

__all__ = ["Duel", "duel", "quickest"]

Call = Callable[[], object]

AGAIN = 2
SAMPLE_S = 0.002  # a queue of calls takes this long: well above a clock's cost, and less than a neighbour's turn
QUEUED_S = 0.004  # the same on a device: well above the wait's own time
MOST_CALLS = 2000
LEAST_ROUNDS, MOST_ROUNDS = 6, 24
OF_LONG_CALLS, LONG_S = 4, 0.05  # rounds, where one call takes longer than that
OF_ENDLESS_CALLS, ENDLESS_S = 2, 0.5
BUDGET_S = 0.25
PATIENCE = 4  # times the budget, while rounds are left out
LOUD = 1.0  # the spread of a race whose rounds others took part in
STALLED = 16  # times its length, and a sample is cut: a neighbour holds one of the cores
PAUSE_S = 0.1  # before a race is run again: most bursts are short
CLEAR = 1.15  # a ratio beyond which more rounds change nothing; its inverse where ours loses
WARM_UP, WARM_S = 3, 0.05  # calls before anything is timed, or this long: glibc stops faulting after the third
TRY_S = 0.0015  # a sample that says which of several rows is worth a race


@dataclass(frozen=True)
class Duel:
    """What was found, in how many rounds, and how often it was run."""

    raced: Raced
    rounds: int
    runs: int = 1

    @property
    def ours(self) -> bool:
        """Whether ours is to be taken. Near parity, and where the machine was too busy to tell, torch is."""
        return not self.raced.noisy and self.raced.ratio >= MARGIN


def duel(ours: Call, torchs: Call, wait: Call | None = None, *, alike: bool = True) -> Duel:
    """Races the two arms. ``wait``, where calls only queue their work, returns when that is done; ``alike`` says that
    noise hits both arms alike."""
    counts = _counts(ours, torchs, wait)
    found = _race(ours, torchs, wait, counts, alike)
    for runs in range(2, 2 + AGAIN):
        if not found.raced.noisy:
            break
        time.sleep(PAUSE_S)
        found = replace(_race(ours, torchs, wait, counts, alike), runs=runs)
    return found


def quickest(arms: Sequence[tuple[str, Call]], wait: Call | None = None) -> str:
    """The name of the arm that a quick look finds quickest, each at its best of three samples; of those that are about
    as quick, the first."""
    if len(arms) == 1:
        return arms[0][0]
    looks = {name: _counts(arm, arm, wait, TRY_S) for name, arm in arms}
    best = {name: took for name, (_, took) in looks.items()}
    for _ in range(3 if min(best.values()) < LONG_S else 1):
        for name, arm in arms:
            best[name] = min(best[name], _sample(arm, looks[name][0], wait))
    least = min(best.values())
    return next(name for name, took in best.items() if took < MARGIN * least)


def _sample(call: Call, count: int, wait: Call | None) -> float:
    if wait is not None:
        wait()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    if wait is not None:
        wait()
    return (time.perf_counter() - begin) / count


def _once(call: Call, wait: Call | None) -> float:
    """About how long one call takes, warm."""
    begin = time.perf_counter()
    for _ in range(WARM_UP):
        took = _sample(call, 1, wait)
        if time.perf_counter() - begin > WARM_S:
            break
    if took < SAMPLE_S / 8:  # a single one would mostly be the wait
        took = _sample(call, 8, wait)
    return took


def _counts(ours: Call, torchs: Call, wait: Call | None, seconds: float = 0.0) -> tuple[int, float]:
    """How many calls fill a sample of torch's arm, one number for both, and how long the slower one's call takes."""
    theirs = _once(torchs, wait)
    mine = theirs if ours is torchs else _once(ours, wait)
    seconds = seconds or (QUEUED_S if wait else SAMPLE_S)
    return max(1, min(MOST_CALLS, int(seconds / max(theirs, 1e-7)))), max(theirs, mine)


def _race(ours: Call, torchs: Call, wait: Call | None, counts: tuple[int, float], alike: bool) -> Duel:
    count, one = counts
    least = OF_ENDLESS_CALLS if one > ENDLESS_S else OF_LONG_CALLS if one > LONG_S else LEAST_ROUNDS
    kept: list[tuple[float, float]] = []
    left_out: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(kept) < MOST_ROUNDS:
        before, first = quiet.cpu_times(), time.perf_counter()
        if (len(kept) + len(left_out)) % 2:
            o = _sample(ours, count, wait)
            t = _sample(torchs, count, wait)
        else:
            t = _sample(torchs, count, wait)
            o = _sample(ours, count, wait)
        now = time.perf_counter()
        (left_out if quiet.noise_between(before, quiet.cpu_times()).loud else kept).append((o, t))
        if count > 1 and now - first > STALLED * SAMPLE_S:
            count = max(1, count // STALLED)
        if now - begin > PATIENCE * BUDGET_S and len(kept) + len(left_out) >= least:
            break
        if len(kept) >= least and not len(kept) % 2 and (now - begin > BUDGET_S or _clear(_ratios(kept))):
            break
    if len(kept) >= least:
        return Duel(_judged(kept), len(kept))
    found = _judged([*kept, *left_out])  # there is no quiet to be had
    spread = found.spread if alike else max(found.spread, LOUD)
    return Duel(replace(found, spread=spread), len(kept) + len(left_out))


def _ratios(rounds: Sequence[tuple[float, float]]) -> list[float]:
    return [t / o for o, t in rounds]


def _judged(rounds: Sequence[tuple[float, float]]) -> Raced:
    ratios, half = _ratios(rounds), len(rounds) // 2
    halves = statistics.median(ratios[:half]), statistics.median(ratios[half:])
    ours, torchs = (statistics.median(arm) for arm in zip(*rounds, strict=True))
    return Raced(1e6 * ours, 1e6 * torchs, halves, _spread(ratios))


def _clear(ratios: Sequence[float]) -> bool:
    """Whether every round, but one of many, says the same, by much."""
    ordered, odd = sorted(ratios), len(ratios) > 4
    return ordered[odd] > CLEAR or ordered[-1 - odd] < 1 / CLEAR


def _spread(ratios: Sequence[float]) -> float:
    won = statistics.median(ratios) > 1
    shares = [1 / r if won else r for r in ratios]  # the quicker arm's time in the slower one's
    half = len(shares) // 2
    ordered, apart = sorted(shares), statistics.median(shares[:half]) - statistics.median(shares[half:])
    return max(ordered[-1 - half // 2] - ordered[half // 2], abs(apart)) / 2
