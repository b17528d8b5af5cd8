"""Where the wall clock went: every call and gap is cut into parts, and calls are grouped into hotspots.

The parts add to the wall clock. Each device has its own (``on_cpu.PARTS``, ``on_gpu.PARTS``); all devices have these:

- **at peak**: the least time that the work of the modelled ops takes on this machine;
- **above the memory roofline**, **above the compute roofline**: time beyond that in ops bound by memory, or by
  arithmetic and elementary functions;
- **in ops**: all of that, if this machine's peaks could not be measured;
- **unexplained**: ops without a model, and time that no term explains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kernelworks.diagnose.forecast.device import Device
from kernelworks.measure.roofline.bound import DISPATCH_CALLS, Bound, bottleneck_of
from kernelworks.profile.cost import NOTHING, Work
from kernelworks.profile.cost.calls import work
from kernelworks.profile.cost.reuse import Reuse
from kernelworks.profile.cost.shapes import Signature, clusters, signature
from kernelworks.profile.non_compute import CUSTOM_KERNELS, is_custom_op, time_category
from kernelworks.profile.replay import Gap
from kernelworks.profile.timeline import UNKNOWN, CallRun, Timeline
from kernelworks.profile.trace import Call, Place

__all__ = [
    "ALLOCATION", "CAUSE_UNKNOWN", "COMPUTE", "FUSION", "MEMORY", "UNEXPLAINED", "UNKNOWN_BOUND", "USEFUL",
    "WITHOUT_PEAKS", "Entry", "Group", "account", "time_breakdown",
]  # fmt: skip

USEFUL, UNEXPLAINED = "at peak", "unexplained"
MEMORY, COMPUTE = "above the memory roofline", "above the compute roofline"
ALLOCATION = "allocation (page faults)"
FUSION = "traffic that fusion would remove"  # it is a share of the time at peak
FLOORS = ("dispatch", "launch")  # these terms of a bound are no work
CAUSE_UNKNOWN = "below the roofline, cause unknown"  # a bottleneck: no term of the bound explains the time
UNKNOWN_BOUND = "unknown"  # a bottleneck: there are no measured peaks to tell
WITHOUT_PEAKS = "in ops"
LEAST_LINE_SHARE = 0.25  # of what is between ops: a line with less of it is not named for all of it
TINY = 0.1  # with less work than this share of a dispatch or a launch, the bound explains nothing


@dataclass
class Entry:
    """One call with its model and its parts."""

    call: Call
    seconds: float  # inside the call, and its share of the gap before it
    work: Work | None
    limit: Bound | None
    parts: dict[str, float]
    critical: float = math.inf  # of the seconds, those on the critical path; on a CPU all of them
    kernels: tuple[str, ...] = ()  # on a GPU


@dataclass
class Group:
    """Calls of one op from one place: what becomes a Hotspot."""

    op: str
    place: Place
    shapes: str
    entries: list[Entry] = field(default_factory=list)
    gap: str = ""  # the bottleneck of a group of gaps between ops (on a GPU: between kernels); "" for ops

    @property
    def seconds(self) -> float:
        return sum(e.seconds for e in self.entries)

    @property
    def critical(self) -> float:
        return sum(min(e.critical, e.seconds) for e in self.entries)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels that its calls launched."""
        return tuple(dict.fromkeys(name for e in self.entries for name in e.kernels))

    @property
    def is_modelled(self) -> bool:
        return all(e.work is not None for e in self.entries)

    @property
    def parts(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for entry in self.entries:
            for name, value in entry.parts.items():
                total[name] = total.get(name, 0.0) + value
        return {name: value for name, value in total.items() if value > 0}

    @property
    def work(self) -> Work:
        total = NOTHING
        for entry in self.entries:
            total = total + (entry.work or NOTHING)
        return total

    @property
    def bound_s(self) -> float:
        """The least that all calls take together, their dispatch included."""
        return sum(e.limit.seconds for e in self.entries if e.limit)

    @property
    def typical(self) -> Entry:
        """The entry in the middle by time: its bound and bottleneck stand for the group."""
        return sorted(self.entries, key=lambda e: e.seconds)[len(self.entries) // 2]

    @property
    def bottleneck(self) -> str:
        if self.gap:
            return self.gap
        parts, entry = self.parts, self.typical
        if parts.get(ALLOCATION, 0.0) >= 0.5 * self.seconds:
            return "allocation"
        if entry.work is None or entry.limit is None:
            return UNKNOWN_BOUND if entry.work is not None and entry.limit is None else "ambiguous"
        if entry.work.read + entry.work.written == 0:
            return "dispatch"
        found = bottleneck_of(entry.limit, entry.seconds - entry.parts.get(ALLOCATION, 0.0))
        return CAUSE_UNKNOWN if found == "latency" else found


def account(timeline: Timeline, on: Device) -> list[Group]:
    """All groups, the gaps included, longest first. Their parts add to the wall clock."""
    ran = [one for one in _functions(timeline.entries()) if one.has_work]
    known: dict[int, Work | None] = {}
    works = [None if one.call.name == UNKNOWN else _once(known, one.call, work) for one in ran]
    reuse = Reuse(on.cache_bytes, timeline.persistent, sum(w.read + w.written for w in works if w))
    shares = on.fusible_shares([one.call for one in ran], works)
    entries = []
    for one, its, share in zip(ran, works, shares, strict=True):
        limit = None
        if its is not None:
            its = on.unit(its)
            limit = on.limit(one, its, reuse.far(one.call, its))
        parts = _inside(one, its, limit, share, on)
        if one.entry:
            parts[on.overhead] = parts.get(on.overhead, 0.0) + one.entry
        entries.append(Entry(one.call, one.exclusive + one.entry, its, limit, parts, one.critical, _kernels(one)))
    found = [*_grouped(entries), *_between(timeline.gaps(), on)]
    return sorted(found, key=lambda g: -g.seconds)


def _functions(entries: Iterable[CallRun]) -> list[CallRun]:
    """What ran, with the calls that a function of torch's made (``profile/composite_functions.py``) as one call of it.
    A loop comes back to the same call of a survey; each turn is a call of its own."""
    runs: list[list[CallRun]] = []
    for one in entries:
        function = None if one.call.backward else one.call.place.function
        last = runs[-1] if runs else []
        turn = function is not None and bool(last) and not last[0].call.backward
        if turn and last[0].call.place.function is function and one.call.like not in {r.call.like for r in last} - {0}:
            last.append(one)
        else:
            runs.append([one])
    return [run[0] if run[0].call.backward or run[0].call.place.function is None else _as_one(run) for run in runs]


def _as_one(run: Sequence[CallRun]) -> CallRun:
    """The calls of one function as its own: what the host did between them is its Python, and stays a gap."""
    calls = [one.call for one in run]
    function = calls[0].place.function
    assert function is not None
    call = dataclasses.replace(
        function, start=calls[0].start, end=calls[-1].end, children=calls, place=calls[0].place, like=id(function),
        graph=calls[0].graph, recorded=any(call.recorded for call in calls), freed=sum(call.freed for call in calls),
    )  # fmt: skip
    return CallRun(
        call,
        before=sum(one.before for one in run),
        host=sum(one.host for one in run),
        seconds=sum(one.seconds for one in run),
        exclusive=sum(one.exclusive for one in run),
        critical=sum(min(one.critical, one.exclusive + one.entry) for one in run),
        waits=any(one.waits for one in run),
        jobs=[job for one in run for job in one.jobs],
        kernels=[seconds for one in run for seconds in one.kernels],
        entry=sum(one.entry for one in run),
        released=sum(one.released for one in run),
        fresh=sum(one.fresh for one in run),
        least=sum(one.least for one in run),
    )


def _kernels(one: CallRun) -> tuple[str, ...]:
    """What ran for a call: on a GPU the kernels that it launched, on a CPU the one of inductor's that it is."""
    return one.names or ((one.call.kernel.name,) if one.call.kernel is not None else ())


T = TypeVar("T")


def _once(known: dict[int, T], call: Call, ask: Callable[[Call], T]) -> T:
    """What is the same for all calls that stand for one call of the survey."""
    if not call.like:
        return ask(call)
    if call.like not in known:
        known[call.like] = ask(call)
    return known[call.like]


def time_breakdown(groups: Iterable[Group], wall: float, parts: Iterable[str]) -> dict[str, float]:
    """Seconds by part in the order of ``parts``. They add to the wall clock: what no group holds is unexplained."""
    total = dict.fromkeys(parts, 0.0)
    for group in groups:
        for name, value in group.parts.items():
            total[name] += value
    total[UNEXPLAINED] += wall - sum(total.values())
    return total


def _inside(ran: CallRun, its: Work | None, limit: Bound | None, fused: float, on: Device) -> dict[str, float]:
    """The seconds that one call has alone, by part."""
    by_itself = time_category(ran.call.name)
    if by_itself:
        return {by_itself: ran.exclusive}
    if its is None:
        return {
            CUSTOM_KERNELS if is_custom_op(ran.call.name) or ran.call.name == UNKNOWN else UNEXPLAINED: ran.exclusive
        }
    parts: dict[str, float] = {}
    rest = ran.exclusive

    def take(name: str, most: float) -> None:
        nonlocal rest
        taken = min(rest, max(0.0, most))
        rest -= taken
        if taken:
            parts[name] = parts.get(name, 0.0) + taken

    if its.read + its.written == 0:
        take(on.bare(ran), rest)
        return parts
    if limit is None:
        for name, seconds in on.overheads(ran, its):
            take(name, seconds)
        take(WITHOUT_PEAKS, rest)
        return parts
    terms = {name: value for name, value in limit.terms.items() if name not in FLOORS}
    worst = max(terms, key=lambda name: terms[name])
    useful = min(terms[worst], limit.seconds)
    if worst == "memory":
        take(FUSION, fused * useful)
        useful *= 1 - fused
    take(USEFUL, useful)
    for name, seconds in on.overheads(ran, its):
        take(name, seconds)
    floor = on.floor * max(1, len(ran.jobs))
    if terms[worst] < floor and ran.seconds < DISPATCH_CALLS * floor:
        take(on.overhead, rest)
    if terms[worst] < TINY * on.floor:  # too little work for its bound to explain that much time
        take(UNEXPLAINED, rest)
    take(MEMORY if worst == "memory" else COMPUTE, rest)
    return parts


def _grouped(entries: list[Entry]) -> list[Group]:
    """Calls by op, module, line and the likeness of their shapes."""
    alike: dict[tuple[str, str, str, bool], list[Entry]] = {}
    for entry in entries:
        call = entry.call
        name = call.display_name + (" (backward)" if call.backward else "")
        alike.setdefault((name, call.place.module, call.place.source, entry.work is None), []).append(entry)
    groups = []
    known: dict[int, Signature] = {}
    for (name, module, source, _), members in alike.items():
        for text, indices in clusters([_once(known, e.call, signature) for e in members]):
            file = members[indices[0]].call.place.file
            groups.append(Group(name, Place(module, source, file=file), text, [members[i] for i in indices]))
    return groups


def _between(gaps: Iterable[Gap], on: Device) -> list[Group]:
    """The gaps by their cause and the module of the call that the host was at, or that follows. The place of each is
    the line with most of it, none if no line has much of it."""
    found: dict[tuple[str, str], Group] = {}
    by_line: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for gap in gaps:
        if gap.seconds <= 0:
            continue
        name, part, bound_by = on.gaps[gap.kind]
        call = gap.call or Call("", 0, 0, place=Place())
        key = (name, call.place.module)
        group = found.setdefault(key, Group(name, call.place, "", gap=bound_by))
        lines, line = by_line.setdefault(key, {}), (call.place.source, call.place.file)
        lines[line] = lines.get(line, 0.0) + gap.seconds
        its = None if part in on.unseen else NOTHING
        group.entries.append(Entry(call, gap.seconds, its, None, {part: gap.seconds}, gap.seconds))
    for key, group in found.items():
        told = {line: seconds for line, seconds in by_line[key].items() if line[0]}
        source, file = max(told, key=lambda line: told[line], default=("", ""))
        if told and told[source, file] < LEAST_LINE_SHARE * sum(by_line[key].values()):
            source = file = ""
        group.place = Place(key[1], source, file=file)
    return list(found.values())
