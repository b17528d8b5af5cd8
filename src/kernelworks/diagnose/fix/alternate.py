"""Two states of a program, measured in turns; and what is noise among wall clocks."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from kernelworks.diagnose.optimization import CombinedChange
from kernelworks.measure.clock.noise import SampledWindows, sample_windows
from kernelworks.profile.program import Program

__all__ = ["LEAST_NOISE", "alternate", "gain_of", "ms", "noise_between", "noise_of", "range_of"]

LEAST_ROUNDS = 2
BURST_S, MOST_RUNS = 0.1, 16  # of one state in a turn: a single run of a few milliseconds says little
LEAST_NOISE = 0.02  # of the wall clock: two runs of one program are seldom nearer
DEVIATIONS = 2.0  # standard errors of a difference, within which it says nothing
FROM_MIDDLE = 1.4826 * 1.2533  # the middle distance of normal samples to the standard error of a median of one


def noise_of(walls: Sequence[float]) -> float:
    """Seconds within which two wall clocks of one program are the same: the middle distance from the median, and 2% at
    the least."""
    middle = statistics.median(walls)
    return max(LEAST_NOISE * middle, statistics.median(abs(wall - middle) for wall in walls))


def gain_of(turns: Sequence[tuple[float, float]]) -> float:
    """Seconds that the second state of the program saves."""
    return statistics.median(before for before, _ in turns) - statistics.median(after for _, after in turns)


def noise_between(turns: Sequence[tuple[float, float]]) -> float:
    """Seconds within which a gain says nothing: two standard errors of the median of what each turn gained, since what
    disturbs a turn disturbs both states in it; and 2% of the wall clock at the least."""
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
    budget_s: float,
    say: Callable[[str], None],
    *,
    most: int,
) -> SampledWindows[tuple[float, float]]:
    """Wall clocks in two states of the program, in turns, of short runs the middle one of several; the order within a
    turn changes too. One run ``after`` before the first turn is not counted. Noise that lasts hits both alike; turns in
    which it was too much are thrown away."""
    rounds = max(LEAST_ROUNDS, min(most, int(0.6 * budget_s / max(2 * wall, 1e-9))))
    runs = max(1, min(MOST_RUNS, int(BURST_S / max(wall, 1e-9))))
    turns = itertools.count()
    with after:
        program.run()

    def turn() -> tuple[float, float]:
        times = {}
        for variant in ("before", "after") if next(turns) % 2 == 0 else ("after", "before"):
            with before if variant == "before" else after as changes:
                spent = changes.spent
                times[variant] = program.median(runs, alone=not changes.changes)
            times[variant] -= (changes.spent - spent) / runs
        return times["before"], times["after"]

    return sample_windows(
        turn, rounds, tries=2 * rounds, deadline_s=budget_s,
        say=lambda number: say(f"measuring in alternation, {number} of {rounds}"),
    )  # fmt: skip


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def range_of(walls: Sequence[float]) -> str:
    return f"runs of the program as it is took {ms(min(walls))} to {ms(max(walls))}"
