"""What a diagnosis says in words: the sentence on top, the findings, and what was not modelled.

A sentence speaks of what was modelled. "Recoverable" is what known optimizations are predicted to gain; what only a
kernel at the roofline would gain is named as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelworks.diagnose.account.account import UNEXPLAINED, USEFUL, WITHOUT_PEAKS
from kernelworks.diagnose.account.hotspots import SMALL, WIDER, Problem
from kernelworks.diagnose.account.on_cpu import FREE, PREEMPTION, PYTHON
from kernelworks.measure.clock.noise import Noise, far_apart
from kernelworks.profile.timeline import Timeline
from kernelworks.profile.trace import GRAPH_ANNOTATION
from kernelworks.records import Fix, Hotspot

__all__ = ["RoughFigures", "ambiguous", "findings", "sentence", "unmodelled_ops"]

HARDLY, MOSTLY = 0.25, 0.9  # if less is modelled, nothing is predicted; if more is, the rest is not named
DOUBT = 0.1  # if more of the wall clock is unexplained, the sentence says so
VAGUE = 20.0  # above this percentage a rough interval is left out if its ends lie tenfold apart
MANY = 10  # a slowdown under the profiler beyond this is only called large
NO_FIX = "no optimization gains here"
NAMES = {
    PYTHON: "Python overhead", FREE: "memory given back and taken again", "launch latency": "waiting for launches",
    "torch's dispatch": "torch's dispatch of small ops",
}  # fmt: skip


def ambiguous(noise: Noise) -> str:
    """The sentence of a diagnosis without figures."""
    return (
        f"ambiguous: {noise}, so times are as they were then, and nothing is predicted; run it again when the machine "
        "is quiet, or with --rough (rough=True) for rough figures"
    )


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
    promises = _promises(time_breakdown, hotspots, wall, fix)
    if rough and rough.far_apart:
        promises = [p for p in promises if p.startswith("the fix")]
        promises.append(f"its runs took {_ms(rough.shortest)} to {_ms(rough.longest)} ms, so nothing is predicted")
    parts = (_head(time_breakdown, hotspots, wall, rough), *promises)
    return first + marked + "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class RoughFigures:
    """Why figures are rough, and the shortest and the longest run."""

    noise: Noise
    shortest: float
    longest: float

    @property
    def far_apart(self) -> bool:
        """Whether they lie too far apart for a prediction."""
        return far_apart((self.shortest, self.longest))

    def percents(self, percent: float, wall: float) -> str:
        """From the least to the most that it may be; empty if that is all or nothing."""
        low = percent * min(1 / (1 + WIDER), wall / self.longest)
        high = min(100.0, percent * max(1 + WIDER, wall / self.shortest))
        if high > VAGUE and low < high / 10:
            return ""
        return f"{low:.0f}% to {high:.0f}%" if round(low) else f"under {max(1.0, high):.0f}%"


def _head(
    time_breakdown: Mapping[str, float], hotspots: Sequence[Hotspot], wall: float, rough: RoughFigures | None
) -> str:
    """How near to the measured peaks the program runs: the whole of it, or the part that was modelled."""
    taken = time_breakdown.get(PREEMPTION, 0.0)
    wall -= taken  # CPU contention is not this program's time
    if wall <= 0:
        return "this program took no time"
    held = " while it had cores" if taken > DOUBT * wall else ""
    unseen: dict[str, float] = {}
    for hotspot in hotspots:
        if not hotspot.modelled and hotspot.op != PREEMPTION:
            name = _shown(hotspot.op)
            unseen[name] = unseen.get(name, 0.0) + hotspot.seconds
    share = 1 - min(1.0, sum(unseen.values()) / wall)
    largest = sorted(unseen, key=lambda name: -unseen[name])
    rest = ", ".join(f"{name} {_ms(unseen[name])} ms" for name in largest[:3])
    if share < HARDLY:
        part = f"{100 * (1 - share):.0f}% of this program's {_ms(wall)} ms"
        return f"{part} was not modelled, so nothing is predicted for it: {rest}"
    if USEFUL not in time_breakdown:
        in_ops = time_breakdown.get(WITHOUT_PEAKS, 0.0)
        part = f"{100 * in_ops / wall:.0f}% of this program's {_ms(wall)} ms is inside torch's ops"
        return f"{part}; how near they come to this machine's peaks is unknown, as those could not be measured"
    percent = 100 * time_breakdown[USEFUL] / (wall * share)
    shown = f"{percent:.0f}%" if round(percent) else "under 1%"
    shown = rough.percents(percent, wall) if rough else shown
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
    low, high = sum(r.low_s for r in hotspots), sum(r.high_s for r in hotspots)
    allows = sum(r.allows_s for r in hotspots)
    if fix is not None and fix.rounds and not fix.refused:
        brought = f"brought {_ms(fix.gain_s)} ms"
        predicted = fix.predicted_gain_s
        said = [f"the fix was predicted to bring {_ms(predicted)} ms and {brought}"] if predicted is not None else []
        said = said or [f"the fix {brought}, of which nothing was predicted"]
    elif fix is not None and not fix.refused:
        said = [NO_FIX]
    else:
        said = []
    if USEFUL not in time_breakdown and max(high, allows) < SMALL * wall:
        return said
    unseen = sum(r.seconds for r in hotspots if not r.modelled and r.op != PREEMPTION)
    if unseen > (1 - HARDLY) * (wall - time_breakdown.get(PREEMPTION, 0.0)) and max(high, allows) < SMALL * wall:
        return said  # most of it is unknown: not even "nothing recoverable" is claimed
    doubt = time_breakdown[UNEXPLAINED] / wall if wall else 0.0
    rest = (
        f" ({100 * doubt:.0f}% of the time is unexplained)"
        if doubt > DOUBT and not any(not r.modelled for r in hotspots)
        else ""
    )
    if max(high, allows) < SMALL * wall:
        return (
            [f"{NO_FIX}, and nothing is recoverable{rest}"]
            if said == [NO_FIX]
            else [*said, f"nothing worth recovering{rest}"]
        )
    bound = f"up to {_ms(allows)} ms at the roofline (theoretical limit){rest}" if allows - high >= SMALL * wall else ""
    if high < SMALL * wall:
        if said == [NO_FIX]:
            return [f"{NO_FIX}, and no other is predicted to", bound]
        return [*said, "no known optimization is predicted to gain", bound]
    by_op: dict[str, float] = {}
    for hotspot in hotspots:
        by_op[hotspot.op] = by_op.get(hotspot.op, 0.0) + hotspot.high_s
    most = max(by_op, key=lambda op: by_op[op])
    back = f"{_ms(low)} to {_ms(high)}" if low >= 0.01 * high else f"up to {_ms(high)}"
    promise = f"{back} ms of {_ms(wall)} ms recoverable, most of it in {NAMES.get(most, most)}"
    return [*said, promise + ("" if bound else rest), bound]


def unmodelled_ops(hotspots: Sequence[Hotspot]) -> tuple[str, ...]:
    """Every op without a contract or a formula, with its calls and time."""
    total: dict[str, tuple[int, float]] = {}
    for hotspot in hotspots:
        if not hotspot.modelled and hotspot.op != PREEMPTION:
            calls, seconds = total.get(hotspot.op, (0, 0.0))
            total[hotspot.op] = (calls + hotspot.calls, seconds + hotspot.seconds)
    ordered = sorted(total.items(), key=lambda item: -item[1][1])
    return tuple(f"{op}: {calls} calls, {_time(seconds)}" for op, (calls, seconds) in ordered)


def findings(problems: Mapping[str, Problem], timeline: Timeline) -> tuple[str, ...]:
    """The problems by the time they cost, and what to know about the measurement itself."""
    wall = timeline.wall
    ordered = sorted(problems.items(), key=lambda item: (-item[1].high, -item[1].allows))
    lines = [_problem(name, its, wall) for name, its in ordered if max(its.high, its.allows) >= SMALL * wall]
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
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
