"""Measures two states of a program in turns, and says what is noise among wall clocks."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

from kernelworks.diagnose.optimization import CombinedChange, Rejected
from kernelworks.measure.clock.noise import SampledWindows, sample_windows
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.profile.program import Program

__all__ = [
    "LEAST_NOISE",
    "LEAST_RUNS",
    "alternate",
    "gain_of",
    "gain_text",
    "ms",
    "noise_between",
    "noise_of",
    "range_of",
]

LEAST_ROUNDS = 2
LEAST_RUNS = 1 + 2 * LEAST_ROUNDS  # of a program that takes longer than a turn's burst
BURST_S, MOST_RUNS = 0.1, 16  # of one state in a turn: one run of a few milliseconds says little
LEAST_NOISE = 0.02  # of the wall clock: two runs of one program seldom agree better
LOST_FACTOR = 1.5  # times as long: what takes that in its first turn, and has no time for another, has lost
SLOWER = 3.0  # times as long: fewer runs of it are measured
DEVIATIONS = 2.0  # standard errors within which a difference is not significant
FROM_MIDDLE = 1.4826 * 1.2533  # from normal samples' median deviation to the standard error of a median


def noise_of(walls: Sequence[float]) -> float:
    """Seconds within which two wall clocks of one program are the same: the median distance from the median, and at
    least 2%."""
    middle = statistics.median(walls)
    return max(LEAST_NOISE * middle, statistics.median(abs(wall - middle) for wall in walls))


def gain_of(turns: Sequence[tuple[float, float]]) -> float:
    """Seconds that the second state of the program saves."""
    return statistics.median(before for before, _ in turns) - statistics.median(after for _, after in turns)


def noise_between(turns: Sequence[tuple[float, float]]) -> float:
    """Seconds within which a gain is not significant: two standard errors of the median of what each turn gained, and
    at least 2% of the wall clock. A turn is one sample, because what disturbs it disturbs both of its states."""
    gains = [before - after for before, after in turns]
    middle = statistics.median(gains)
    spread = statistics.median(abs(gain - middle) for gain in gains)
    error = FROM_MIDDLE * spread / math.sqrt(len(gains))
    return max(LEAST_NOISE * statistics.median(before for before, _ in turns), DEVIATIONS * error)


def alternate(
    program: Program,
    before: CombinedChange,
    after: CombinedChange,
    wall: float,
    limits: tuple[float, float],
    say: Callable[[str], None],
    *,
    most: int,
) -> SampledWindows[tuple[float, float]]:
    """Wall clocks of two states of the program, in turns; of short runs the median of several. The order within a turn
    alternates. One run ``after`` before the first turn is not counted. Noise that lasts affects both states alike; a
    turn with too much noise is thrown away. ``limits`` are the seconds after which no turn begins beyond the second,
    and those after which none does, however much longer than ``wall`` the program takes with ``after`` in place.

    Raises Rejected if the first turn shows that it is slower and there is no time for more, BudgetExceeded if there is
    no time at all."""
    budget_s, most_s = limits
    begun = time.monotonic()
    changed_s = _first_run_s(program, after, wall)
    rounds = max(LEAST_ROUNDS, min(most, int(0.6 * budget_s / max(wall + changed_s, 1e-9))))
    runs = max(1, min(MOST_RUNS, int(BURST_S / max(wall, changed_s, 1e-9))))
    turns = itertools.count()

    def turn() -> tuple[float, float]:
        times: dict[str, float] = {}
        for variant in ("before", "after") if next(turns) % 2 == 0 else ("after", "before"):
            if time.monotonic() - begun > most_s:
                raise BudgetExceeded("there was no time left to measure it")
            with before if variant == "before" else after as changes:
                spent = changes.seconds_spent
                times[variant] = program.median(runs, alone=not changes.changes)
            times[variant] -= (changes.seconds_spent - spent) / runs
        if times["after"] > LOST_FACTOR * times["before"] and time.monotonic() - begun > budget_s:
            raise Rejected(f"with it the program takes {times['after'] / times['before']:.1f} times as long")
        return times["before"], times["after"]

    return sample_windows(
        turn, rounds, tries=2 * rounds, least=LEAST_ROUNDS, deadline_s=budget_s,
        say=lambda which: say(f"measuring in alternation, {which}"),
    )  # fmt: skip


def _first_run_s(program: Program, after: CombinedChange, wall: float) -> float:
    """Seconds of a run that is not counted; ``wall`` if it is about as long as any. What takes much longer may have
    made something anew, so the next run says whether all of them do."""
    for _ in range(2):
        begin = time.monotonic()
        with untimed_section(), after:
            program.run()
        took = time.monotonic() - begin
        if took <= SLOWER * wall:
            return wall
    return took


def gain_text(gain: float, noise: float, wall: float) -> str:
    """What a measured gain of so many seconds says, with its interval, as shares of the wall clock."""
    share, error = f"{abs(gain) / wall:.1%}", f"+- {noise / wall:.1%}"
    if abs(gain) > noise:
        return f"it {'saves' if gain > 0 else 'costs'} {share} {error} of the time"
    return f"it {'costs' if gain < 0 else 'saves'} {share} {error} of the time, not significant"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def range_of(walls: Sequence[float]) -> str:
    return f"runs of the program as it is took {ms(min(walls))} to {ms(max(walls))}"
