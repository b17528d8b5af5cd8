"""Two ways to do the same work, timed as their caller waits: is one faster, and is that certain?

``race`` (``measure/clock/race.py``) gives figures to be quoted, and takes seconds for them. Here one bit is wanted,
whether ours beats torch by ``MARGIN``, and what it costs is paid before a program runs; so what is clear ends early.

- A sample is a queue of calls and the wait for its end, by the wall clock: host time, launches and allocations count.
- The variants take turns, and whoever goes first changes every round. What is judged is the ratio within a round, which
  a neighbour that slows both variants leaves alone.
- Rounds in which other processes kept our threads off the cores are left out (``clock/noise.py`` has the rule), as long
  as others come. If too few come, a race of several threads is not believed, since noise does not hit both variants
  alike: what is held up goes on on one thread here (``build/sharing.py``), and in torch it does not.
- So is a round in which nothing of ours ran for a tenth of the time though it was not kept off a core: a variant slept,
  or the machine under this machine did. It is no work of either variant, and never believed.
- Where a result of some megabytes comes to lie decides a quarter of the time that it takes, for either variant, and in
  a loop it lies in the same place for as long as the loop runs. So on a CPU blocks of other sizes are taken and given
  back between the rounds of calls that are long enough: what is judged is many places, not the one that a loop found.
- The rounds are cut into two halves in time, and in each the median of the rounds and the quickest calls must both say
  so: what holds up one variant in every round alike (threads that wait for a core, pages that the system took back and
  hands out anew) spares some call among many. If the two are far apart, the medians measured something else than
  the variants.
- ``spread`` is by how much the quicker variant's time varied from round to round, as a share of the slower variant's:
  half the distance between the quartiles, between the halves, or between the medians and the quickest calls, if that
  is more. Over ``NOISY`` nothing is believed: the race is run again, ``MAX_RERUNS`` times at most. (Of the slower
  variant's, so that 16 times as quick, give or take 4, is certain.)
- If the time for a race is over before there are rounds enough, what there is may say it all the same: if the
  calls that warmed up and every round agree that the one variant is ``FAR_RATIO`` times as quick, nothing is missing.
- No clock runs while something is built, which is waited for once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelworks.build import cache, sharing
from kernelworks.dispatch.tuning_records import MARGIN, RaceResult
from kernelworks.measure.clock import noise as quiet
from kernelworks.measure.clock.work_beside import timed_section

__all__ = ["FAR_RATIO", "Duel", "OverTime", "check_time", "clock", "duel", "fastest_variant"]

Call = Callable[[], object]

MAX_RERUNS = 2  # A noisy race is run again this often.
SAMPLE_S = 0.002  # A queue of calls takes this long: well above a clock's cost, and less than a neighbour's turn.
QUEUED_S = 0.004  # It takes this long on a device: well above the wait's own time.
PARTS = 16  # So many parts of a sample are timed by themselves: a quick one shows what the variant can do.
DOUBTFUL_RATIO = 4.0  # So many times as quick: torch's variant is timed longer, each call so far may have been held up.
AWAKE_SHARE = 0.9  # Our threads must have run, or waited for a core, for this share of a round.
MOST_CALLS = 2000
LEAST_ROUNDS, MOST_ROUNDS = 6, 24
WIDE_S = 100e-6  # A longer call may have a result whose place in memory matters.
PLACES, BLOCKS = 3, (64 << 10, 4 << 20)  # So many blocks between these sizes (bytes) are held at a time.
OF_LONG_CALLS, LONG_S = 4, 0.05  # So many rounds are enough if one call takes longer than this.
OF_ENDLESS_CALLS, ENDLESS_S = 2, 0.5
BUDGET_S = 0.25
PATIENCE = 4  # A race may take so many times its budget while rounds are left out.
LOUD_SPREAD = 1.0  # A race under CPU contention in every round is given this spread.
STALL_FACTOR = 16  # A sample of so many times its length is cut: a neighbour holds one of the cores.
PAUSE_S = 0.1  # A race waits this long before it is run again: most bursts are short.
FAR_RATIO = 5.0  # One round tells this ratio from noise.
CLEAR_RATIO = 1.15  # Beyond this ratio more rounds change nothing (below its inverse, if ours loses).
WARM_UP, WARM_S = 3, 0.05  # So many calls, or seconds, warm up: glibc stops faulting after the third call.
TRY_S = 0.0015  # A sample this long tells which of several kernels is worth a race.


class OverTime(RuntimeError):
    """The time that there was for a race is over."""


@dataclass(frozen=True)
class Duel:
    """What was found, in how many rounds, and how often it was run."""

    result: RaceResult
    rounds: int
    runs: int = 1

    @property
    def ours(self) -> bool:
        """Whether ours is to be taken. Near parity, and if the machine was too busy to tell, torch is."""
        return not self.result.is_noisy and self.result.ratio >= MARGIN


@dataclass(frozen=True)
class Sample:
    """What one call took, in seconds: on average of a queue of them, and in the quickest part of it."""

    mean: float
    least: float


@dataclass(frozen=True)
class Round:
    ours: Sample
    torchs: Sample

    @property
    def ratio(self) -> float:
        return self.torchs.mean / self.ours.mean


def clock() -> float:
    """By which there is an end to races: seconds, without those in which something was built."""
    return time.perf_counter() - cache.built_s()


@timed_section()
def duel(ours: Call, torchs: Call, wait: Call | None = None, *, alike: bool = True, until: float = math.inf) -> Duel:
    """Races the two variants. ``wait``, if calls only queue their work, returns when that is done; ``alike`` says
    that noise hits both variants alike. Raises OverTime if nothing is known ``until`` then, by ``clock``."""
    look = _looked(ours, torchs, wait)
    found = _race(ours, torchs, wait, look, alike, until)
    with contextlib.suppress(OverTime):  # then a noisy race is what is known
        for runs in range(2, 2 + MAX_RERUNS):
            if not found.result.is_noisy:
                break
            time.sleep(PAUSE_S)
            found = replace(_race(ours, torchs, wait, look, alike, until), runs=runs)
    return found


def fastest_variant(variants: Sequence[tuple[str, Call]], wait: Call | None = None, until: float = math.inf) -> str:
    """The name of the variant that a quick look finds quickest, each at its best of three samples; of those that are
    about as quick, the first. Raises OverTime."""
    if len(variants) == 1:
        return variants[0][0]
    looks = {}
    for name, variant in variants:
        check_time(until)
        looks[name] = _looked(variant, variant, wait, TRY_S)
    best = {name: look.slower for name, look in looks.items()}
    for _ in range(3 if min(best.values()) < LONG_S else 1):
        for name, variant in variants:
            check_time(until)
            best[name] = min(best[name], _sample(variant, looks[name].count, wait).mean)
    least = min(best.values())
    return next(name for name, took in best.items() if took < MARGIN * least)


def check_time(until: float) -> None:
    """Raises OverTime after ``until``."""
    if clock() > until:
        raise OverTime("the time for it was over")


def _sample(call: Call, count: int, wait: Call | None) -> Sample:
    if wait is not None:  # a queue has no parts that could be timed without waiting in between
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        mean = (time.perf_counter() - begin) / count
        return Sample(mean, mean)
    part = -(-count // PARTS)
    least, left = math.inf, count
    begin = last = time.perf_counter()
    while left > 0:
        for _ in range(part):
            call()
        left -= part
        now = time.perf_counter()
        least, last = min(least, now - last), now
    return Sample((last - begin) / (count - left), least / part)


def _once(call: Call, wait: Call | None) -> float:
    """About how long one call takes, warm."""
    begin = time.perf_counter()
    for _ in range(WARM_UP):
        took = _sample(call, 1, wait).mean
        if time.perf_counter() - begin > WARM_S:
            break
    if took < SAMPLE_S / 8:  # a single one would mostly be the wait
        took = _sample(call, 8, wait).mean
    return took


@dataclass(frozen=True)
class Look:
    """What the first calls say: how many of them fill a sample, and how long one takes."""

    count: int  # of torch's variant, one number for both
    ours: float
    torchs: float

    @property
    def slower(self) -> float:
        return max(self.ours, self.torchs)

    @property
    def round(self) -> Round:
        return Round(Sample(self.ours, self.ours), Sample(self.torchs, self.torchs))


def _looked(ours: Call, torchs: Call, wait: Call | None, seconds: float = 0.0) -> Look:
    theirs = _once(torchs, wait)
    mine = theirs if ours is torchs else _once(ours, wait)
    seconds = seconds or (QUEUED_S if wait else SAMPLE_S)
    return Look(max(1, min(MOST_CALLS, int(seconds / max(theirs, 1e-7)))), mine, theirs)


def _race(
    ours: Call, torchs: Call, wait: Call | None, look: Look, alike: bool, until: float
) -> Duel:  # fmt: skip
    count, one = look.count, look.slower
    least = OF_ENDLESS_CALLS if one > ENDLESS_S else OF_LONG_CALLS if one > LONG_S else LEAST_ROUNDS
    kept: list[Round] = []
    loud: list[Round] = []
    idle = 0
    places = _places() if wait is None and one > WIDE_S else itertools.repeat(None)
    begin = time.perf_counter()
    while len(kept) < MOST_ROUNDS:
        if clock() > until:
            if alike and kept and _far([look.round, *kept]):
                return Duel(_judged([look.round, *kept]), len(kept))
            check_time(until)
        next(places)
        before, first = quiet.cpu_times(), time.perf_counter()
        if (len(kept) + len(loud) + idle) % 2:
            o = _sample(ours, count, wait)
            t = _sample(torchs, count, wait)
        else:
            t = _sample(torchs, count, wait)
            o = _sample(ours, count, wait)
        now, after = time.perf_counter(), quiet.cpu_times()
        noise = quiet.noise_between(before, after)
        if wait is None and after.own_s - before.own_s + noise.taken_s < AWAKE_SHARE * noise.wall_s:
            idle += 1
        else:
            (loud if noise.loud or sharing.is_held_up() else kept).append(Round(o, t))
        if count > 1 and now - first > STALL_FACTOR * SAMPLE_S:
            count = max(1, count // STALL_FACTOR)
        if now - begin > PATIENCE * BUDGET_S and len(kept) + len(loud) + idle >= least:
            break
        over = now - begin > BUDGET_S or clock() > until
        if len(kept) >= least and not len(kept) % 2 and (over or _clear([r.ratio for r in kept])):
            break
    if wait is None and min((r.ratio for r in kept), default=0.0) > DOUBTFUL_RATIO:
        kept = _doubted(kept, torchs)
    if len(kept) >= least:
        return Duel(_judged(kept), len(kept))
    rounds = [*kept, *loud]  # there is no quiet to be had
    if len(rounds) < 2:
        return Duel(RaceResult(1e6 * o.mean, 1e6 * t.mean, (t.mean / o.mean,) * 2, LOUD_SPREAD), len(rounds))
    found = _judged(rounds)
    believed = alike and len(rounds) >= idle
    return Duel(found if believed else replace(found, spread=max(found.spread, LOUD_SPREAD)), len(rounds))


def _places() -> Iterator[None]:
    """At each step what is allocated next comes to lie elsewhere. The blocks are never touched: they take no memory."""
    drawn, held = random.Random(0), list[Tensor]()
    while True:
        if len(held) == PLACES:
            held.pop(drawn.randrange(PLACES))
        held.append(torch.empty(drawn.randrange(*BLOCKS), dtype=torch.uint8, device="cpu"))
        yield


def _doubted(rounds: Sequence[Round], torchs: Call) -> list[Round]:
    """The same rounds, with the quickest of torch's calls among so many more as there is time for."""
    begin, quick = time.perf_counter(), math.inf
    while time.perf_counter() < begin + BUDGET_S:
        quick = min(quick, _sample(torchs, 1, None).least)
    return [Round(r.ours, replace(r.torchs, least=min(quick, r.torchs.least))) for r in rounds]


def _judged(rounds: Sequence[Round]) -> RaceResult:
    """``halves`` are the lesser of what the medians and what the quickest calls of each half say."""
    half, ratios = len(rounds) // 2, [r.ratio for r in rounds]
    halves = tuple(
        min(statistics.median(r.ratio for r in part), _least(part)) for part in (rounds[:half], rounds[half:])
    )
    ours, torchs = statistics.median(r.ours.mean for r in rounds), statistics.median(r.torchs.mean for r in rounds)
    return RaceResult(1e6 * ours, 1e6 * torchs, (halves[0], halves[1]), _spread(ratios, _least(rounds)))


def _least(rounds: Sequence[Round]) -> float:
    """Torch's quickest calls against our quickest."""
    return min(r.torchs.least for r in rounds) / min(r.ours.least for r in rounds)


def _clear(ratios: Sequence[float]) -> bool:
    """Whether every round, but one of many, says the same, by much."""
    ordered, odd = sorted(ratios), len(ratios) > 4
    return ordered[odd] > CLEAR_RATIO or ordered[-1 - odd] < 1 / CLEAR_RATIO


def _far(rounds: Sequence[Round]) -> bool:
    """Whether each says the same, by very much."""
    return all(r.ratio > FAR_RATIO for r in rounds) or all(r.ratio < 1 / FAR_RATIO for r in rounds)


def _spread(ratios: Sequence[float], least: float) -> float:
    """``least`` is the same ratio by the quickest calls."""
    middle = statistics.median(ratios)

    def share(ratio: float) -> float:  # the quicker variant's time in the slower one's
        return 1 / ratio if middle > 1 else ratio

    shares = [share(r) for r in ratios]
    half = len(shares) // 2
    ordered, apart = sorted(shares), statistics.median(shares[:half]) - statistics.median(shares[half:])
    return max(ordered[-1 - half // 2] - ordered[half // 2], abs(apart), abs(share(least) - share(middle))) / 2
