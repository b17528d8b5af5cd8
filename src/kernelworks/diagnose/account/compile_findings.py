"""The findings on a program under torch.compile as a whole, and on what it waits for: no single hotspot shows them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from kernelworks.compile import compile_report
from kernelworks.compile.report import Call, CompileReport
from kernelworks.diagnose.account.account import FUSION, Entry, Group
from kernelworks.profile.cost.operands import Arguments, name_of
from kernelworks.profile.non_compute import COMMUNICATION, COMPILING, INPUT
from kernelworks.profile.timeline import Timeline

__all__ = ["program_findings"]

NOTABLE = 0.02  # a finding takes at least this share of the wall clock
MOST = 3  # at most so many lines of one kind are named
PRODUCTS = ("bmm", "baddbmm")
ATTENTION = "scaled_dot_product_attention"


def program_findings(timeline: Timeline, groups: Sequence[Group]) -> tuple[str, ...]:
    """The findings, what costs most first among those of a kind."""
    wall = timeline.wall
    parts: dict[str, float] = {}
    for group in groups:
        for name, seconds in group.parts.items():
            parts[name] = parts.get(name, 0.0) + seconds
    entries = [entry for group in groups if not group.gap for entry in group.entries]
    lines = [*_waited(parts, groups, wall)]
    if timeline.compiled:
        lines += [*_attention(timeline, entries, wall), *_unfused(entries, wall), *_broken(timeline, wall)]
        lines += _served(_calls_of(timeline))
        lines += [
            f"CUDA graphs were asked for and skipped: {reason}"
            for reason in dict.fromkeys(graph.skipped for graph in timeline.compiled if graph.skipped)
        ]
    lines += _recompiled(timeline, parts.get(COMPILING, 0.0))
    return tuple(lines)


def _calls_of(timeline: Timeline) -> list[Call]:
    """The calls in the graphs that ran. The process may have compiled other programs before."""
    ran = {graph.module for graph in timeline.compiled}
    return CompileReport(tuple(graph for graph in compile_report() if graph.modules & ran)).calls


def _served(calls: Sequence[Call]) -> Iterable[str]:
    """What our backend did with the calls that it knew, if the program was compiled with it."""
    ours, theirs = ([call for call in calls if bool(call.kernel) is taken] for taken in (True, False))
    if not calls:
        return
    kinds: dict[tuple[str, str], list[Call]] = {}  # each kernel once, however many regions it serves
    for call in ours:
        kinds.setdefault((call.op, call.kernel), []).append(call)
    kernels = "; ".join(_kernel_calls(its) for its in list(kinds.values())[:MOST])
    more = f"; and {len(kinds) - MOST} kernels more" if len(kinds) > MOST else ""
    count, whole = (sum(call.count for call in its) for its in (ours, calls))
    yield f'backend="kernelworks" serves {count} of {whole} calls that it knows{": " * bool(ours)}{kernels}{more}'
    for call in theirs[:MOST]:
        yield f"inductor keeps {call.times}{call.op}({call.call}): {call.why}"


def _kernel_calls(calls: Sequence[Call]) -> str:
    """The calls of an op that one kernel serves."""
    count, ratios = sum(call.count for call in calls), sorted({f"{call.ratio:.2f}" for call in calls}, key=float)
    times = f"{count} x " if count > 1 else ""
    ratio = " to ".join(dict.fromkeys((ratios[0], ratios[-1])))
    return f"{times}{calls[0].op} by {calls[0].kernel} ({ratio}x inductor in its region)"


def _waited(parts: dict[str, float], groups: Sequence[Group], wall: float) -> Iterable[str]:
    waited = parts.get(INPUT, 0.0)
    if waited >= NOTABLE * wall:
        alone = any(group.op.endswith("in this process") for group in groups)
        advice = (
            "num_workers=2 or more, with persistent_workers=True, load ahead of it in other processes"
            if alone
            else "more num_workers, a larger prefetch_factor, or less work for each sample"
        )
        bound = "input-bound: " if waited >= 0.25 * wall else ""
        yield f"{bound}the program waits for its DataLoader for {_of(waited, wall)}: {advice}"
    exchanged = parts.get(COMMUNICATION, 0.0)
    if exchanged >= NOTABLE * wall:
        yield f"communication between processes takes {_of(exchanged, wall)}"


def _attention(timeline: Timeline, entries: Sequence[Entry], wall: float) -> Iterable[str]:
    """Products of matrices on a line where the program calls for attention."""
    graphs = timeline.compiled[0].traced.graphs
    called = {step.place.source for steps in graphs for step in steps.values() if step.what == ATTENTION}
    for source in sorted(called - {""}):
        here = [e for e in entries if e.call.graph and e.call.place.source == source]
        products = [e for e in here if e.call.name.removeprefix("aten::") in PRODUCTS]
        if products:
            dtype = next((name_of(o.dtype) for o in Arguments(products[0].call).all_operands), "")
            took = sum(e.seconds for e in here)
            yield (
                f"inductor decomposed attention into {dtype} bmm ({source}): {_of(took, wall)}; "
                "kw.attention, or attention left out of the compiled graph, keeps it whole"
            )


def _unfused(entries: Sequence[Entry], wall: float) -> Iterable[str]:
    """Pairs of inductor's kernels, the second of which reads what the first wrote."""
    found: dict[tuple[str, str, str], float] = {}
    ordered = sorted((e for e in entries if e.call.kernel is not None), key=lambda e: e.call.start)
    for before, after in itertools.pairwise(ordered):
        passed = min(before.parts.get(FUSION, 0.0), after.parts.get(FUSION, 0.0))
        if passed and before.call.graph == after.call.graph:
            key = (before.call.display_name, after.call.display_name, after.call.place.source)
            found[key] = found.get(key, 0.0) + 2 * passed
    for (first, second, source), seconds in sorted(found.items(), key=lambda item: -item[1])[:MOST]:
        if seconds >= NOTABLE * wall:
            names = [name.removeprefix("inductor: ") for name in (first, second)]
            yield f"inductor did not fuse {names[0]} with {names[1]} ({source}): {_of(seconds, wall)} of traffic"


def _broken(timeline: Timeline, wall: float) -> Iterable[str]:
    found = timeline.broken
    runs: list[str] = []
    between = 0.0
    for ran in timeline.entries():
        graph = ran.call.graph
        if graph and not ran.call.backward and graph not in runs:
            between += ran.before if runs else 0.0
            runs.append(graph)
    if not found or len(runs) < 2:
        return
    named = "; ".join(f"{source} ({reason})" for source, reason in found[:MOST])
    breaks = "1 graph break leaves" if len(found) == 1 else f"{len(found)} graph breaks leave"
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    yield (
        f"{breaks} {len(runs)} compiled graphs a run; entering those after the first takes "
        f"{_of(between, wall)}: {named}{more}"
    )


def _recompiled(timeline: Timeline, compiling: float) -> Iterable[str]:
    if compiling:
        yield f"torch.compile was at work in the timed runs: {_of(compiling, timeline.wall)} of one run"
    for source, reason, times, seconds in timeline.recompiled[:MOST]:
        yield f"{source} was recompiled {times} times ({seconds:.3g} s in all); the guard that failed last: `{reason}`"


def _of(seconds: float, wall: float) -> str:
    unit, name = (1.0, "s") if wall >= 1 else (1e3, "ms")
    return f"{seconds * unit:.3g} of {wall * unit:.3g} {name}"
