"""Groups of calls made into the records of a diagnosis: regions with advice, findings, and the sentence on top."""

from __future__ import annotations

from collections.abc import Sequence

from kernelworks.diagnose.account import FREE, PYTHON, UNEXPLAINED, USEFUL, Group
from kernelworks.diagnose.rows import row_for
from kernelworks.diagnose.rules import RULES, Advice, View
from kernelworks.diagnose.timeline import Timeline
from kernelworks.diagnose.timeline_gpu import GpuTimeline
from kernelworks.diagnose.work import Arguments, Operand
from kernelworks.records import Fix, Region

__all__ = ["findings", "regions", "sentence", "unmodelled"]

NOTHING_TO_BE_HAD = "nothing to be had"
SMALL = 0.005  # of the wall clock
NOISY_SCALE = 0.15  # profiled and plain runs further apart than this are said


def regions(
    groups: Sequence[Group], wall: float, threads: int, device: str = "cpu", kind: str | None = None
) -> tuple[tuple[Region, ...], dict[str, float]]:
    """One region a group, and the seconds that each problem's regions take (hopeful), by problem."""
    siblings = _siblings(groups)
    found, problems = [], dict[str, float]()
    for group in groups:
        near = siblings.get((group.place.module, group.place.path), frozenset())
        view = _view(group, wall, threads, near, device, kind)
        advice = _advice(view, group)
        if advice.problem:
            problems[advice.problem] = problems.get(advice.problem, 0.0) + advice.high
        found.append(_region(group, view, advice))
    return tuple(found), problems


def _siblings(groups: Sequence[Group]) -> dict[tuple[str, str], frozenset[str]]:
    """The ops called in each module."""
    found: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        if not group.gap:
            names = found.setdefault((group.place.module, group.place.path), set())
            names.add(group.op.removesuffix(" (backward)"))
    return {key: frozenset(ops) for key, ops in found.items()}


def _view(group: Group, wall: float, threads: int, siblings: frozenset[str], device: str, kind: str | None) -> View:
    operands: list[Operand] = []
    row = ""
    if not group.gap:
        call = group.typical.call
        for item in Arguments(call).items:
            operands += [o for o in (item if isinstance(item, list) else [item]) if isinstance(o, Operand)]
        row = row_for(call, threads, device, kind)
    return View(
        op=group.op,
        module=group.place.module,
        source=group.place.source,
        shapes=tuple(o.shape for o in operands),
        dtypes=tuple(str(o.dtype).removeprefix("torch.") for o in operands),
        calls=len(group.entries),
        seconds=group.seconds,
        wall=wall,
        regime=group.regime,
        bound=min(group.bound_s, group.seconds),
        parts=group.parts,
        siblings=siblings,
        growing=".." in group.shapes,
        row=row,
        threads=threads,
        device=device,
        critical=group.critical,
    )


def _advice(view: View, group: Group) -> Advice:
    """The first rule that applies, else what the bound alone says."""
    if not group.modelled:
        return Advice("", "unmodelled: no formula for its work, so nothing is promised", 0.0, 0.0)
    most = min(view.seconds, view.critical)
    for rule in RULES:
        advice = rule.applies(view) if view.device in rule.devices else None
        if advice is not None:
            high = min(max(advice.high, 0.0), most)
            return Advice(advice.problem, advice.action, min(max(advice.low, 0.0), high), high)
    excess = min(view.excess(), most)
    if group.gap or most < 0.1 * view.seconds:
        beside = "" if group.gap else "not on the critical path: "
        return Advice("", f"{beside}{NOTHING_TO_BE_HAD}", 0.0, 0.0 if group.gap else excess)
    if view.achieved >= 0.8 or excess < SMALL * view.wall:
        return Advice("", NOTHING_TO_BE_HAD, 0.0, excess if view.achieved < 0.8 else 0.0)
    limit = group.typical.limit
    at = f"its bound ({limit.ceiling})" if limit else "its bound"
    return Advice("", f"no proved row of ours here; a kernel at {at} would give this back", 0.0, excess)


def _region(group: Group, view: View, advice: Advice) -> Region:
    entry = group.typical
    between = bool(group.gap)
    work = group.work
    return Region(
        op=group.op,
        module=group.place.module,
        source=group.place.source,
        shapes=group.shapes,
        calls=len(group.entries),
        seconds=group.seconds,
        share=view.share,
        regime=view.regime,
        ceiling=entry.limit.ceiling if entry.limit and not between else "",
        achieved=None if between or not group.modelled else view.achieved,
        low_s=advice.low,
        high_s=advice.high,
        action=advice.action,
        flop=work.flop,
        bytes=work.read + work.written,
        modelled=group.modelled,
        parts=group.parts,
        kernels=group.kernels,
    )


def unmodelled(found: Sequence[Region]) -> tuple[str, ...]:
    """Every op without a contract or a formula, with its calls and time."""
    total: dict[str, tuple[int, float]] = {}
    for region in found:
        if not region.modelled:
            calls, seconds = total.get(region.op, (0, 0.0))
            total[region.op] = (calls + region.calls, seconds + region.seconds)
    ordered = sorted(total.items(), key=lambda item: -item[1][1])
    return tuple(f"{op}: {calls} calls, {_time(seconds)}" for op, (calls, seconds) in ordered)


def findings(problems: dict[str, float], timeline: Timeline | GpuTimeline) -> tuple[str, ...]:
    """The problems by the time they cost, and what to know about the measurement itself."""
    lines = [
        f"{problem}: up to {_time(seconds)} ({100 * seconds / timeline.wall:.0f}% of the wall clock)"
        for problem, seconds in sorted(problems.items(), key=lambda item: -item[1])
        if seconds >= SMALL * timeline.wall
    ]
    if timeline.noisy:
        lines.append(
            f"ambiguous: other processes used over 10% of the cores in {timeline.noisy} of {len(timeline.walls)} runs"
        )
    if isinstance(timeline, GpuTimeline):
        if abs(timeline.device - 1) > NOISY_SCALE / 2:
            lines.append(
                f"under the profiler kernels took {1 / timeline.device:.2f} times as long as without it, by the wall "
                "clock; their times were scaled to fit"
            )
    elif abs(timeline.scale - 1) > NOISY_SCALE:
        lines.append(
            f"under the profiler, its own time taken off, the program took {1 / timeline.scale:.2f} times as long as "
            "without it; the times of single ops were scaled to fit"
        )
    if timeline.elsewhere:
        lines.append(f"{timeline.elsewhere} ops ran on other threads: not on the critical path, not counted")
    return tuple(lines)


def sentence(footer: dict[str, float], found: Sequence[Region], wall: float, fix: Fix | None = None) -> str:
    """What a user reads first. A fix that must not be kept comes before all else."""
    text = _sentence(footer, found, wall)
    return f"the fix is refused: {fix.refused}; {text}" if fix is not None and fix.refused else text


def _sentence(footer: dict[str, float], found: Sequence[Region], wall: float) -> str:
    useful = 100 * footer[USEFUL] / wall if wall else 0.0
    low, high = sum(r.low_s for r in found), sum(r.high_s for r in found)
    by_op: dict[str, float] = {}
    for region in found:
        by_op[region.op] = by_op.get(region.op, 0.0) + region.high_s
    head = f"this program runs at {useful:.0f}% of what this machine can do"
    if high < SMALL * wall:
        return f"{head}; nothing worth having back"
    most = max(by_op, key=lambda op: by_op[op])
    names = {
        PYTHON: "Python between ops", FREE: "memory given back and taken again",
        "launch latency": "waiting for launches", "torch's dispatch": "torch's dispatch of small ops",
    }  # fmt: skip
    doubt = footer[UNEXPLAINED] / wall
    rest = f" ({100 * doubt:.0f}% of the time is unexplained)" if doubt > 0.1 else ""
    back = f"{_ms(low)} to {_ms(high)}" if low >= 0.01 * high else f"up to {_ms(high)}"
    return f"{head}; {back} ms of {_ms(wall)} can be had back, most of it in {names.get(most, most)}{rest}"


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.2g}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
