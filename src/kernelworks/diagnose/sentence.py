"""What a diagnosis says in words: the sentence on top, the findings, and what was not modelled.

A sentence speaks of what was modelled. "Recoverable" is what known optimizations are predicted to gain; what only a
kernel at the roofline would gain is named as that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelworks.diagnose.account.account import UNEXPLAINED, USEFUL, WITHOUT_PEAKS
from kernelworks.diagnose.account.hotspots import SMALL, Problem
from kernelworks.diagnose.account.on_cpu import FREE, PREEMPTION, PYTHON
from kernelworks.measure.clock.noise import Noise, far_apart
from kernelworks.profile.non_compute import INPUT
from kernelworks.profile.timeline import Timeline
from kernelworks.profile.trace import GRAPH_ANNOTATION
from kernelworks.records import Fix, Hotspot
from kernelworks.records.peak_share import peak_share, percents

__all__ = [
    "NO_GAIN", "ROUGH_NOW", "RoughFigures", "ambiguous", "clauses", "contention", "findings", "notes", "sentence",
    "unmodelled_ops",
]  # fmt: skip

HARDLY, MOSTLY = 0.25, 0.9  # if less is modelled, nothing is predicted; if more is, the rest is not named
LEAST_ON_CORES = 0.05  # of the wall clock; with less of it nothing can be said of a program
DOUBT = 0.1  # if more of the wall clock is unexplained, the sentence says so
LEAST_SHARE = 0.01  # of the cores, from which on it is told
MOST_OF_IT, MOST_NAMED = 0.5, 3  # a share of what is recoverable; ops that the sentence names
MANY = 10  # a slowdown under the profiler beyond this is only called large
NO_FIX = "no optimization gains here"
NO_GAIN = "no known optimization is predicted to gain"
ROUGH_NOW = "--rough (rough=True) gives rough figures now"
NOT_BENCHMARKED = "what kernels of kernelworks would gain is unknown, as they were not benchmarked"
NAMES = {
    PYTHON: "Python overhead", FREE: "memory given back and taken again", "launch latency": "waiting for launches",
    "torch's dispatch": "torch's dispatch of small ops",
}  # fmt: skip


def contention(noise: Noise, wait_s: float, *, rough: bool) -> str:
    """What is said as soon as others are seen at work."""
    others = f"Other processes use {100 * noise.share:.0f}% of the cores"
    if noise.share < LEAST_SHARE:  # over a short time the cores say nothing
        others = f"Other processes keep this program off the cores for {100 * noise.kept_share:.0f}% of its time"
    if rough:
        return f"{others}: every figure of this diagnosis is rough, and marked so."
    return (
        f"{others}. Times, calls and lines are measured all the same, and marked. What needs quiet waits for it, "
        f"about {wait_s:.0f} s at the most; without it peaks stay unknown and nothing is predicted. {ROUGH_NOW}."
    )


def ambiguous(noise: Noise, *, unknown: bool = False) -> str:
    """The sentence of a diagnosis without predictions. ``unknown``: measured peaks are."""
    peaks = "peaks are unknown, " if unknown else ""
    return f"ambiguous: {noise}, so times are as they were then, {peaks}and nothing is predicted; {ROUGH_NOW}"


def sentence(
    time_breakdown: Mapping[str, float],
    hotspots: Sequence[Hotspot],
    wall: float,
    fix: Fix | None = None,
    rough: RoughFigures | None = None,
) -> str:
    """What a user reads first. A fix that must not be kept, or that could not be measured, comes before all else."""
    first = ""
    if fix is not None and fix.refused:
        first = f"the fix is refused: {fix.refused}; "
    elif fix is not None and fix.ambiguous and not fix.rough:
        first = f"ambiguous: the fix was measured while {fix.ambiguous}; "
    elif fix is not None and fix.ambiguous and rough is None:  # else all of it is marked as such
        first = f"rough, as to the fix, which was measured while {fix.ambiguous}; "
    marked = f"rough, since {rough.noise}: " if rough else ""
    head, *promises = clauses(time_breakdown, hotspots, wall, fix, rough)
    return first + marked + "; ".join((head, *_outcome(fix), *promises))


def clauses(
    time_breakdown: Mapping[str, float],
    hotspots: Sequence[Hotspot],
    wall: float,
    fix: Fix | None = None,
    rough: RoughFigures | None = None,
) -> tuple[str, ...]:
    """What the sentence says of the program as it is: how near it runs to the peaks, then what is recoverable beside
    what a fix has applied."""
    if wall <= 0:
        return ("this program took no time",)
    away = time_breakdown.get(PREEMPTION, 0.0) / wall
    if away > 1 - LEAST_ON_CORES:
        return (f"other processes kept this program off the cores for {away:.0%} of its time: what it does is unknown",)
    head = _head(time_breakdown, hotspots, wall, rough)
    if rough and rough.far_apart:
        return head, f"its runs took {_ms(rough.shortest)} to {_ms(rough.longest)} ms, so nothing is predicted"
    return head, *_promises(time_breakdown, hotspots, wall, fix)


def _outcome(fix: Fix | None) -> list[str]:
    """What the fix saved, beside what was predicted."""
    if fix is None or fix.refused:
        return []
    if not fix.rounds:
        return [f"no optimization is applied yet: {fix.ended}" if fix.ended else NO_FIX]
    brought, predicted = f"brought {_ms(fix.gain_s)} ms", fix.told_prediction_s
    if predicted is None:
        return [f"the fix {brought}, of which nothing was predicted"]
    return [f"the fix was predicted to bring {_ms(predicted)} ms and {brought}"]


@dataclass(frozen=True)
class RoughFigures:
    """Why figures are rough, and the shortest and the longest run."""

    noise: Noise | str
    shortest: float
    longest: float

    @property
    def far_apart(self) -> bool:
        """Whether they lie too far apart for a prediction."""
        return far_apart((self.shortest, self.longest))

    def percents(self, percent: float, wall: float) -> str:
        """From the least to the most that it may be; empty if that is all or nothing."""
        return percents(percent, wall, (self.shortest, self.longest))


def _head(
    time_breakdown: Mapping[str, float], hotspots: Sequence[Hotspot], wall: float, rough: RoughFigures | None
) -> str:
    """How near to the measured peaks the program runs: the whole of it, or the part that was modelled."""
    taken = time_breakdown.get(PREEMPTION, 0.0)
    wall -= taken  # CPU contention is not this program's time
    held = " in the time that it had cores" if taken > DOUBT * wall else ""
    unseen: dict[str, float] = {}
    for hotspot in hotspots:
        if not hotspot.modelled and hotspot.op != PREEMPTION:
            name = _shown(hotspot.op)
            unseen[name] = unseen.get(name, 0.0) + hotspot.seconds
    share, achieved = dataclasses.astuple(peak_share(time_breakdown, hotspots, wall + taken))
    largest = sorted(unseen, key=lambda name: -unseen[name])
    rest = ", ".join(f"{name} {_ms(unseen[name])} ms" for name in largest[:3])
    if share < HARDLY:
        part = f"{100 * (1 - share):.0f}% of this program's {_ms(wall)} ms"
        return f"{part} was not modelled, so nothing is predicted for it: {rest}"
    if USEFUL not in time_breakdown:
        in_ops = time_breakdown.get(WITHOUT_PEAKS, 0.0)
        part = f"{100 * in_ops / wall:.0f}% of this program's {_ms(wall)} ms is inside torch's ops"
        return part
    shown = rough.percents(100 * achieved, wall) if rough else percents(100 * achieved, wall)
    useful = f"runs at {shown} of what this machine can do{held}"
    if not shown:
        useful = "was disturbed too much to tell how near it runs to what this machine can do"
    if share > MOSTLY:
        return f"this program {useful}"
    return f"{100 * share:.0f}% of this program was modelled, and that part {useful}; the rest was not: {rest}"


def _shown(op: str) -> str:
    return "graphs of torch.compile" if op.startswith(GRAPH_ANNOTATION) else op


def _promises(
    time_breakdown: Mapping[str, float], hotspots: Sequence[Hotspot], wall: float, fix: Fix | None
) -> list[str]:
    """What known optimizations are predicted to gain, and what only the roofline would. What a fix has applied is its
    gain, and not counted twice."""
    left = [r for r in hotspots if not r.applied]
    low, high, allows = (
        (sum(values) for values in zip(*((r.low_s, r.high_s, r.allows_s) for r in left), strict=True))
        if left
        else (0.0, 0.0, 0.0)
    )
    if USEFUL not in time_breakdown and max(high, allows) < SMALL * wall:  # nothing is known of the machine
        return []
    unseen = sum(r.seconds for r in hotspots if not r.modelled and r.op != PREEMPTION)
    if unseen > (1 - HARDLY) * (wall - time_breakdown.get(PREEMPTION, 0.0)) and max(high, allows) < SMALL * wall:
        return []  # most of it is unknown: not even that nothing is predicted to gain is claimed
    doubt = time_breakdown[UNEXPLAINED] / wall if wall else 0.0
    rest = (
        f" ({100 * doubt:.0f}% of the time is unexplained)"
        if doubt > DOUBT and not any(not r.modelled for r in hotspots)
        else ""
    )
    bound = f"up to {_ms(allows)} ms at the roofline (theoretical limit){rest}" if allows - high >= SMALL * wall else ""
    if high < SMALL * wall:
        nothing = "no other optimization is predicted to gain" if fix is not None else NO_GAIN
        if fix is None and sum(r.allows_s for r in left if r.unknown_gain) >= SMALL * wall:
            nothing = NOT_BENCHMARKED
        waited = time_breakdown.get(INPUT, 0.0)
        if waited >= DOUBT * wall:
            nothing = f"it waits for its input for {_ms(waited)} ms of {_ms(wall)} ms: load ahead"
        known = fix is None or not (fix.needs_s or fix.ended)
        if not known and nothing.startswith("no other"):  # of what did not fit nothing is known
            return [bound] if bound else []
        return [nothing, bound] if bound else [nothing + rest]
    back = f"{_ms(low)} to {_ms(high)}" if low >= 0.01 * high else f"up to {_ms(high)}"
    promise = f"{back} ms of {_ms(wall)} ms recoverable, {_largest_gain(left, high)}"
    return [promise, bound] if bound else [promise + rest]


def _largest_gain(hotspots: Sequence[Hotspot], high: float) -> str:
    """Where most of it is: the op, or the ops that one optimization serves, if no op has half of what that gains."""
    by_gain: dict[str, dict[str, float]] = {}
    for hotspot in hotspots:
        ops = by_gain.setdefault(hotspot.optimization or hotspot.op, {})
        ops[hotspot.op] = ops.get(hotspot.op, 0.0) + hotspot.high_s
    name, ops = max(by_gain.items(), key=lambda item: sum(item[1].values()))
    gain, ordered = sum(ops.values()), sorted(ops, key=lambda op: -ops[op])
    first = ordered[0]
    part = "most of it" if gain > MOST_OF_IT * high else "the largest part of it"
    if ops[first] > MOST_OF_IT * gain:
        return f"{part} in {NAMES.get(first, first)}"
    named = ordered if len(ordered) <= MOST_NAMED else [*ordered[:2], f"{len(ordered) - 2} more ops"]
    return f"{part} in {', '.join(named[:-1])} and {named[-1]} ({name})"


def unmodelled_ops(hotspots: Sequence[Hotspot]) -> tuple[str, ...]:
    """Every op without a contract or a formula, with its calls and time."""
    total: dict[str, tuple[int, float]] = {}
    for hotspot in hotspots:
        if not hotspot.modelled and hotspot.op != PREEMPTION:
            calls, seconds = total.get(hotspot.op, (0, 0.0))
            total[hotspot.op] = (calls + hotspot.calls, seconds + hotspot.seconds)
    ordered = sorted(total.items(), key=lambda item: -item[1][1])
    return tuple(f"{op}: {calls} call{'s' * (calls != 1)}, {_time(seconds)}" for op, (calls, seconds) in ordered)


def findings(problems: Mapping[str, Problem], wall: float) -> tuple[str, ...]:
    """The problems by the time they cost."""
    ordered = sorted(problems.items(), key=lambda item: (-item[1].high, -item[1].allows))
    return tuple(_problem(name, its, wall) for name, its in ordered if max(its.high, its.allows) >= SMALL * wall)


def notes(timeline: Timeline) -> tuple[str, ...]:
    """What to know about the measurement itself."""
    lines = []
    if timeline.noisy:
        lines.append(f"{timeline.noisy} windows of runs were discarded: other processes used the machine meanwhile")
    if abs(1 / timeline.profiler_slowdown - 1) > timeline.may_differ:
        slower = _times(timeline.profiler_slowdown)
        lines.append(
            f"under the profiler, its own time taken off, {timeline.slowed} took {slower} as long as without it; the "
            "times of single ops were scaled to fit"
        )
    if timeline.surveyed is not None:
        lines.append(
            f"of {len(timeline.calls)} calls the first {timeline.surveyed} were surveyed, as the budget allows; the "
            "others are taken for calls of the same names among them"
        )
    if timeline.elsewhere:
        lines.append(f"{timeline.elsewhere} ops ran on other threads: not on the critical path, not counted")
    if timeline.outside is not None and timeline.outside.elsewhere:
        lines.append(_elsewhere(timeline.outside.elsewhere))
    return tuple(lines)


def _problem(name: str, its: Problem, wall: float) -> str:
    share = f"{100 * its.seconds / wall:.0f}% of the wall clock"
    if its.high < SMALL * wall:
        return f"{name}: {_time(its.seconds)} ({share}); what is recoverable is not predicted"
    low = f"{_time(its.low)} to " if its.low >= 0.01 * its.high else "up to "
    return f"{name}: {low}{_time(its.high)} of its {_time(its.seconds)} ({share}) recoverable"


def _elsewhere(found: Mapping[str, tuple[int, float]]) -> str:
    calls, seconds = (sum(column) for column in zip(*found.values(), strict=True))
    largest = sorted(found, key=lambda op: -found[op][1])[:3]
    names = ", ".join(f"{op.removeprefix('aten::')} {_time(found[op][1])}" for op in largest)
    return f"{calls:.0f} ops ran on other threads of the program, {_time(seconds)} in all ({names}): not modelled"


def _times(factor: float) -> str:
    if factor > MANY:
        return f"more than {MANY} times"
    return f"{factor:.2f} times" if factor > 1 / MANY else f"less than {1 / MANY:.1g} times"


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.0f}" if abs(ms) >= 10 else f"{ms:.2g}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
