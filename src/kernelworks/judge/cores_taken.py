"""What a candidate takes of the cores: more of them than it was given, and time of theirs while no clock runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kernelworks.judge.roles.handle import Answer
from kernelworks.judge.trial_result import TrialResult
from kernelworks.records.judgement import Charge

__all__ = ["count_off_clock", "remark_cores"]

# Of cores beyond those that it was given, from which on it uses more; and around each hand-over what is counted of the
# cores' time and not by the clock.
MORE_CORES, AROUND_S = 0.3, 5e-4
# Of each core that it was given, between two calls and beyond what the baseline takes then: what is its own time at the
# latest, and what it is refused for where it is several times the baseline's too. The judge's own steps are in both.
OFF_CLOCK_S, WORKING_OFF_S, SEVERAL = 1e-4, 2e-3, 3.0
DEVIATIONS = 3.0  # of the difference of two means, within which it is none


def remark_cores(fresh: Sequence[Answer], group: int, threads: int, tried: TrialResult) -> None:
    """Threads of its own are its own affair. Where more are at work than it was given, it is said beside its time:
    torch itself takes all cores in threads that a program makes, whatever its first one was given."""
    at_work = sum(answer.cpu_s for answer in fresh) * group
    by_clock = sum(answer.seconds * group + AROUND_S for answer in fresh)
    if at_work > (threads + MORE_CORES) * by_clock:
        said = f"{at_work / by_clock:.1f} are at work for it, and it and all others were given {threads}"
        tried.remarks.append(Charge("more cores", said))


def _times(answers: Sequence[Answer]) -> list[float]:
    """The largest was the machine's."""
    return sorted(a.off_clock_s for a in answers if a.off_clock_s is not None)[:-1]


def count_off_clock(fresh: Sequence[Answer], theirs: Sequence[Answer], threads: int, tried: TrialResult) -> None:
    """What a call leaves to do is counted where it is done: what it takes of the cores while no clock runs is its own
    time where it is more than the baseline's, by more than such means of the same differ."""
    its, usual = _times(fresh), _times(theirs)
    if not its or not usual:
        return
    mean, theirs_s = statistics.fmean(its), statistics.fmean(usual)
    chance = DEVIATIONS * math.sqrt(sum(statistics.pvariance(one) / len(one) for one in (its, usual)))
    more = mean - theirs_s - min(threads * OFF_CLOCK_S, chance)
    if more <= 0:
        return
    mine = tried.seconds["candidate"]
    mine[:] = [seconds + more / threads for seconds in mine]
    if more > max(threads * WORKING_OFF_S, SEVERAL * theirs_s):
        said = f"it works while no clock runs: {mean:.2g} s of the cores between calls, the reference {theirs_s:.2g} s"
        tried.charge("goes on working", said)
