"""Where the wall clock went: every call and gap cut into parts, calls grouped into regions, all adding to the wall.

The parts, in the footer's order:

- **useful at ceiling**: the least time that the work of the modelled ops takes on this machine;
- **memory excess**, **compute excess**: time beyond that in ops whose bound is memory, or arithmetic and elementary
  functions;
- **dispatch**: the floor of a call into torch for every op and for what it calls, in Python and in C++, all the time
  of ops that move no data, and that of ops whose work is less than one such floor;
- **host and sync**: the program's own Python between ops, beyond that floor;
- **native code outside torch**: between ops, NumPy's kernels say: not modelled;
- **waiting**: between ops, the program's thread asleep: for a file, a lock, a clock;
- **taken by other processes**: the program's threads could have run and had no core;
- **other threads**: between ops, the program's thread asleep while other threads of the program worked;
- **allocation (page faults)**: fresh pages touched inside ops, and large blocks given back between them;
- **unexplained**: ops without a model, and time that no term above explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from kernelworks.ceilings.bound import DISPATCH_CALLS, Bound, regime
from kernelworks.diagnose.limits import Reuse, limit
from kernelworks.observe import watch
from kernelworks.observe.overhead import PAGE, Floors
from kernelworks.observe.timeline import Timeline, fault_share
from kernelworks.observe.trace import Call, Place
from kernelworks.records import Ceilings
from kernelworks.work import NOTHING, Work
from kernelworks.work.costs import work
from kernelworks.work.shapes import Signature, clusters, signature

__all__ = ["PARTS", "Entry", "Group", "account", "footer", "grouped"]

USEFUL, MEMORY, COMPUTE = "useful at ceiling", "memory excess", "compute excess"
DISPATCH, HOST, ALLOCATION, UNEXPLAINED = "dispatch", "host and sync", "allocation (page faults)", "unexplained"
NATIVE, WAITING, OTHERS = "native code outside torch", "waiting", "other threads"
TAKEN = "taken by other processes"
UNSEEN = (NATIVE, WAITING, OTHERS, TAKEN)  # what no model speaks of
PARTS = (USEFUL, MEMORY, COMPUTE, DISPATCH, HOST, NATIVE, WAITING, OTHERS, TAKEN, ALLOCATION, UNEXPLAINED)

PYTHON, FREE = "python", "free memory"  # the regions of gaps
# What was seen in a gap beside Python -> the part it counts to, which names its region too, and its regime.
SEEN = {watch.NATIVE: (NATIVE, "native"), watch.WAITING: (WAITING, "waiting"), watch.OTHERS: (OTHERS, "threads")}
TINY = 0.1
GRAIN = 32768  # elements from which torch's elementwise kernels use several threads


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
    """Calls of one op from one place: what becomes a Region."""

    op: str
    place: Place
    shapes: str
    entries: list[Entry] = field(default_factory=list)
    gap: str = ""  # the regime of a group of gaps between ops (on a GPU: between kernels); "" for ops

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
    def modelled(self) -> bool:
        return all(e.work is not None for e in self.entries)

    @property
    def parts(self) -> dict[str, float]:
        total = dict.fromkeys(PARTS, 0.0)
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
        """The entry in the middle by time: its bound and regime stand for the group."""
        return sorted(self.entries, key=lambda e: e.seconds)[len(self.entries) // 2]

    @property
    def regime(self) -> str:
        if self.gap:
            return self.gap
        parts, entry = self.parts, self.typical
        if parts.get(ALLOCATION, 0.0) >= 0.5 * self.seconds:
            return "allocation"
        if entry.work is None or entry.limit is None:
            return "ambiguous"
        if entry.work.read + entry.work.written == 0:
            return "dispatch"
        return regime(entry.limit, entry.seconds)


def account(timeline: Timeline, floors: Floors, threads: int, ceilings: Ceilings) -> list[Group]:
    """All groups, the gaps included, longest first. Their parts add to the wall clock."""
    known: dict[int, Work | None] = {}
    works = [_once(known, m.call, work) for m in timeline.moments]
    run_bytes = sum(w.read + w.written for w in works if w)
    reuse = Reuse(ceilings.cache_bytes.get("L3", 32 << 20), timeline.persistent, run_bytes)
    faulting = fault_share(timeline.faults, (m.call for m in timeline.moments)) * floors.fault
    pages = _FreedPages(timeline)
    entries, gaps = [], []
    for moment, its_work in zip(timeline.moments, works, strict=True):
        its_limit = limit(its_work, reuse.far(moment.call, its_work), threads, ceilings) if its_work else None
        dispatch = min(moment.gap, floors.gap)
        parts = _inside(moment.call, moment.seconds, its_work, its_limit, floors, faulting, threads, ceilings)
        parts[DISPATCH] = parts.get(DISPATCH, 0.0) + dispatch
        entries.append(Entry(moment.call, moment.seconds + dispatch, its_work, its_limit, parts))
        gaps.append((moment.call, moment.gap - dispatch, pages.seconds(moment.call.freed, floors)))
    tail = Call("", 0, 0, place=Place())
    gaps.append((tail, timeline.tail, pages.seconds(timeline.tail_freed, floors)))
    found = [*grouped(entries), *_between(gaps, timeline.outside)]
    if timeline.taken:
        entry = Entry(Call("", 0, 0), timeline.taken, None, None, {TAKEN: timeline.taken})
        found.append(Group(TAKEN, Place(), "", [entry], gap="taken"))
    return sorted(found, key=lambda g: -g.seconds)


T = TypeVar("T")


def _once(known: dict[int, T], call: Call, ask: Callable[[Call], T]) -> T:
    """What is the same for all calls that stand for one call of the survey."""
    if not call.like:
        return ask(call)
    if call.like not in known:
        known[call.like] = ask(call)
    return known[call.like]


def footer(groups: Iterable[Group], wall: float, parts: Iterable[str] = PARTS) -> dict[str, float]:
    """Seconds by part in the order of ``parts``. They add to the wall clock: what no group holds is unexplained."""
    total = dict.fromkeys(parts, 0.0)
    for group in groups:
        for name, value in group.parts.items():
            total[name] += value
    total[UNEXPLAINED] += wall - sum(total.values())
    return total


def _inside(
    call: Call,
    seconds: float,
    its: Work | None,
    bound: Bound | None,
    floors: Floors,
    faulting: float,
    threads: int,
    ceilings: Ceilings,
) -> dict[str, float]:
    """The seconds inside one call, by part."""
    if its is None or bound is None:
        return {UNEXPLAINED: seconds}
    parts: dict[str, float] = {}
    rest = seconds

    def take(name: str, most: float) -> None:
        nonlocal rest
        taken = min(rest, max(0.0, most))
        rest -= taken
        if taken:
            parts[name] = parts.get(name, 0.0) + taken

    if its.read + its.written == 0:
        take(DISPATCH, seconds)
        return parts
    terms = {name: value for name, value in bound.terms.items() if name != "dispatch"}
    take(USEFUL, max(terms.values()))
    wide = its.written >= GRAIN * 4 and threads > 1
    take(ALLOCATION, call.place.faults * faulting)
    take(DISPATCH, floors.span * call.events + (ceilings.fork_join_us * 1e-6 if wide else 0.0))
    worst = max(terms, key=lambda name: terms[name])
    floor = ceilings.dispatch_us * 1e-6
    if terms[worst] < floor and seconds < DISPATCH_CALLS * floor:
        take(DISPATCH, rest)
    if terms[worst] < TINY * floor:  # too little work for its bound to explain that much time
        take(UNEXPLAINED, rest)
    take(MEMORY if worst == "memory" else COMPUTE, rest)
    return parts


class _FreedPages:
    """Seconds for giving blocks back, never for more pages than the run took fresh: malloc keeps the others."""

    def __init__(self, timeline: Timeline) -> None:
        freed = (sum(m.call.freed for m in timeline.moments) + timeline.tail_freed) / PAGE
        calls = [m.call for m in timeline.moments]
        taken = sum(call.place.faults for call in calls) * fault_share(timeline.faults, calls)
        self.share = min(1.0, taken / freed) if freed else 0.0

    def seconds(self, freed: int, floors: Floors) -> float:
        return freed / PAGE * self.share * floors.free


def grouped(entries: list[Entry]) -> list[Group]:
    """Calls by op, module, line and the likeness of their shapes."""
    alike: dict[tuple[str, str, str, bool], list[Entry]] = {}
    for entry in entries:
        call = entry.call
        name = call.name.removeprefix("aten::") + (" (backward)" if call.backward else "")
        alike.setdefault((name, call.place.module, call.place.source, entry.work is None), []).append(entry)
    groups = []
    known: dict[int, Signature] = {}
    for (name, module, source, _), members in alike.items():
        for text, indices in clusters([_once(known, e.call, signature) for e in members]):
            groups.append(Group(name, Place(module, source), text, [members[i] for i in indices]))
    return groups


def _between(gaps: list[tuple[Call, float, float]], outside: watch.Outside | None) -> list[Group]:
    """The gaps by the module of the call that follows: freeing memory, what was seen in them, and Python."""
    found: dict[tuple[str, str], Group] = {}
    slowest: dict[tuple[str, str], float] = {}
    for number, (call, seconds, freeing) in enumerate(gaps):
        freed = min(seconds, freeing)
        pieces = [(FREE, ALLOCATION, freed, "allocation")]
        rest = seconds - freed
        if outside is not None:
            at = outside.of(number)
            for kind, (part, waits_on) in SEEN.items():
                value = at.share(kind) * (seconds - freed)
                rest -= value
                pieces.append((part, part, value, waits_on))
        pieces.append((PYTHON, HOST, rest, "host"))
        for op, part, value, waits_on in pieces:
            if value <= 0:
                continue
            key = (op, call.place.module)
            group = found.setdefault(key, Group(op, call.place, "", gap=waits_on))
            if value > slowest.get(key, 0.0):
                slowest[key], group.place = value, call.place
            work = None if part in UNSEEN else NOTHING
            group.entries.append(Entry(call, value, work, None, {part: value}))
    return list(found.values())
