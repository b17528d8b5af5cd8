"""Groups of calls made into the hotspots of a diagnosis, each with its advice and what that is predicted to bring.

Two figures are never mixed: what a known optimization is predicted to recover (a range), and what would be recovered
at the roofline, the theoretical limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kernelworks.diagnose.account.account import Group
from kernelworks.diagnose.account.on_cpu import NATIVE, OTHERS, PREEMPTION, UNWATCHED_TIME, WAITING
from kernelworks.diagnose.account.program_run import layers_text, source_lines
from kernelworks.diagnose.forecast.races import Promise, Races
from kernelworks.diagnose.rules import RULES, Advice, Rule, View
from kernelworks.diagnose.rules.patterns import patterns
from kernelworks.profile.cost.operands import Arguments, Operand, name_of, total_bytes
from kernelworks.profile.cost.results import results
from kernelworks.profile.non_compute import (
    COMMUNICATION,
    COMPILING,
    CUSTOM_KERNELS,
    INPUT,
    LOADING_WORKERS,
    is_custom_op,
)
from kernelworks.records import Fix, Hotspot
from kernelworks.records.fix import REJECTED
from kernelworks.records.peak_share import WIDER

__all__ = [
    "SMALL",
    "Problem",
    "drop_promises",
    "find_hotspots",
    "rescale_to_fix",
    "widen_ranges",
]

AT_THE_ROOFLINE = "at the roofline"  # an action; it is said from 80% of the roofline on
SWAP = "swap in "  # an action begins so if it puts a kernel of ours in place of torch's
SMALL = 0.005  # less than this share of the wall clock is not worth a word
# What a user reads of the parts that no model covers.
UNMODELLED_ADVICE = {
    NATIVE: "native code outside torch's ops (NumPy, JSON, copies to tensors): call it less, or do its work in torch",
    WAITING: "the program's thread waited (a file, a lock, a clock, a process): wait less, or beside other work",
    UNWATCHED_TIME: "Python, native code or waiting: to find its lines would have taken too long",
    PREEMPTION: "other processes had the cores",
    INPUT: "load ahead: DataLoader(..., num_workers=2, persistent_workers=True)",
    LOADING_WORKERS: "its workers are slow, or made anew each time: persistent_workers=True, a larger num_workers",
    COMMUNICATION: "the program exchanged data with other processes",
    COMPILING: "torch's compiler was at work: once if nothing changes, in each run if something does",
    CUSTOM_KERNELS: "an operator that is not torch's: its bytes are its arguments', its arithmetic is not known",
    OTHERS: "the program's thread waited for other threads of the program: their ops are not modelled",
}
WITHOUT_PREDICTION = Advice("", "", 0.0, 0.0)
# These rules name no optimization if there is no kernel: they speak of the roofline alone.
BOUND_ALONE = frozenset({"decode_attention", "gemv", "half_without_hardware", "tiny_ops"})


@dataclass
class Problem:
    """What the hotspots with one problem take, what of it is recoverable, and what would be at the roofline.
    ``members`` are their places among the hotspots."""

    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    allows: float = 0.0
    members: list[int] = field(default_factory=list)

    def remaining_problem(self, hotspots: Sequence[Hotspot]) -> Problem:
        """The same as the hotspots now have it: what a fix has applied is no problem any more."""
        mine = [hotspots[i] for i in self.members if not hotspots[i].applied]
        return Problem(
            sum(r.seconds for r in mine) if len(mine) < len(self.members) else self.seconds, sum(r.low_s for r in mine),
            sum(r.high_s for r in mine), sum(r.allows_s for r in mine), self.members,
        )  # fmt: skip


def find_hotspots(
    groups: Sequence[Group],
    wall: float,
    races: Races,
    fix: Fix | None = None,
) -> tuple[tuple[Hotspot, ...], dict[str, Problem]]:
    """One hotspot a group, and the problems that were found. ``races`` says which kernels a swap would take, and how
    much they gain; a ``fix`` which optimizations were tried on the whole program."""
    siblings, shares = _siblings(groups), _shares(groups)
    found, problems = list[Hotspot](), dict[str, Problem]()
    kept = () if fix is None or fix.refused or not fix.rounds else fix.optimizations
    applied = {one.optimization for one in kept if one.applied}
    for group in groups:
        near = siblings.get((group.place.module, group.place.path), frozenset())
        promise = Promise() if group.gap or group.typical.limit is None else races.of(group.typical.call)
        view = _view(group, wall, near, races, promise.kernel, shares[id(group)])
        known = group.gap or not group.is_modelled or group.typical.limit is not None
        advice = _advice(view, group, promise, races, fix) if known else WITHOUT_PREDICTION
        hotspot = _hotspot(group, view, advice, applied)
        if advice.problem:
            its = problems.setdefault(advice.problem, Problem())
            its.seconds += min(view.seconds, view.critical)
            its.low, its.high = its.low + hotspot.low_s, its.high + hotspot.high_s
            its.allows += hotspot.allows_s
            its.members.append(len(found))
        found.append(hotspot)
    return tuple(found), problems


def _siblings(groups: Sequence[Group]) -> dict[tuple[str, str], frozenset[str]]:
    """The ops called in each module."""
    found: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        if not group.gap:
            names = found.setdefault((group.place.module, group.place.path), set())
            names.add(group.op.removesuffix(" (backward)"))
    return {key: frozenset(ops) for key, ops in found.items()}


def _shares(groups: Sequence[Group]) -> dict[int, dict[str, float]]:
    """For each group the share of its seconds in calls that are part of a pattern, by pattern."""
    calls = {id(e.call): e.call for group in groups if not group.gap for e in group.entries}
    part_of = patterns(sorted(calls.values(), key=lambda call: call.start))
    found: dict[int, dict[str, float]] = {}
    for group in groups:
        its, seconds = found.setdefault(id(group), {}), group.seconds
        for entry in group.entries if not group.gap and seconds else ():
            for name in part_of.get(id(entry.call), ()):
                its[name] = its.get(name, 0.0) + entry.seconds / seconds
    return found


def _view(
    group: Group,
    wall: float,
    siblings: frozenset[str],
    races: Races,
    kernel: str,
    shares: dict[str, float],
) -> View:
    operands, made = list[Operand](), list[Operand]()
    if not group.gap:
        arguments = Arguments(group.typical.call)
        operands, made = arguments.all_operands, results(arguments) or []
    return View(
        op=group.op,
        module=group.place.module,
        source=group.place.source,
        shapes=tuple(o.shape for o in operands),
        dtypes=tuple(str(o.dtype).removeprefix("torch.") for o in operands),
        calls=len(group.entries),
        seconds=group.seconds,
        wall=wall,
        bottleneck=group.bottleneck,
        bound=min(group.bound_s, group.seconds),
        parts=group.parts,
        siblings=siblings,
        shares=shares,
        strides=tuple(o.stride for o in operands),
        result=name_of(made[0].dtype) if made else "",
        unit=group.work.dtype,
        written=group.work.written,
        kernel=kernel,
        threads=races.threads,
        device=races.device,
        critical=group.critical,
    )


def _advice(view: View, group: Group, promise: Promise, races: Races, fix: Fix | None) -> Advice:
    """The first rule that applies, with the predicted gain of its optimization; else what the roofline alone says."""
    if not group.is_modelled:
        parts = group.parts
        part = max(parts, key=lambda name: parts[name], default="")
        text = UNMODELLED_ADVICE.get(view.op) or UNMODELLED_ADVICE.get(
            part, "no formula for its work, so nothing is predicted"
        )
        return Advice("", text, 0.0, 0.0)
    most = min(view.seconds, view.critical)
    for rule in RULES:
        advice = rule.applies(view) if view.device in rule.devices else None
        if advice is not None:
            rejection = _rejection(rule, fix)
            if rejection:
                return Advice("", rejection, 0.0, 0.0)
            made = _with_gain(view, rule, advice, promise, races)
            return dataclasses.replace(made, optimization=rule.optimization or "swap" * made.action.startswith(SWAP))
    excess = min(view.excess(), most)
    if group.gap or most < 0.1 * view.seconds:
        return Advice("", "" if group.gap else "not on the critical path", 0.0, 0.0)
    if view.achieved_share >= 0.8:
        floor = view.bottleneck in ("dispatch", "launch")
        return Advice("", "" if floor else AT_THE_ROOFLINE, 0.0, 0.0)
    if excess < SMALL * view.wall:
        return Advice("", "", 0.0, 0.0)
    why = "no other verified kernel here"
    if promise.gain is not None:
        why = "no kernel faster than torch's was measured here"
    elif promise.may:
        why = "no tuning record yet: `kernelworks autotune` says whether a kernel is faster"
    return Advice("", why, 0.0, 0.0, unknown=promise.gain is None and promise.may)


def _rejection(rule: Rule, fix: Fix | None) -> str:
    """That a fix did not apply what a rule advises; "" if it did, or if the gain of any way to apply it is unknown. The
    figures that decided stand with the optimization."""
    tried = (
        [one for one in fix.optimizations if one.optimization == rule.optimization]
        if fix is not None and rule.optimization
        else []
    )
    known = [one for one in tried if one.gain_s is not None or one.predicted_gain_s is not None]
    if not known or len(known) < len(tried) or any(one.applied or one.needs_s for one in tried):
        return ""
    why = "it was measured, and rejected" if known[-1].gain_s is not None else "it is predicted not to gain"
    return f"{rule.optimization} is not applied: {why}"


def _with_gain(view: View, rule: Rule, advice: Advice, promise: Promise, races: Races) -> Advice:
    """The advice with its predicted gain: a kernel's by a benchmark, else the rule's own if it has an optimization."""
    most = min(view.seconds, view.critical)
    if view.kernel and view.kernel in advice.action and advice.action.startswith(SWAP):
        gain = promise.gain
        if gain is None:
            action = f"nothing predicted: {view.kernel} was not benchmarked"
            return dataclasses.replace(advice, action=action, low=0, high=0, unknown=True)
        if not gain.high or not most:
            why = (
                "was benchmarked and is no faster here"
                if most
                else "could serve it, but it is not on the critical path"
            )
            return Advice("", f"{view.kernel} {why}", 0.0, 0.0)
        return dataclasses.replace(
            advice, low=min(gain.low * view.seconds, most), high=min(gain.high * view.seconds, most)
        )
    why = races.lacks(advice.ops, view.dtypes[0] if view.dtypes else "") if advice.ops else ""
    if why:
        said, of = advice.action.removeprefix(SWAP), "no gain by " * advice.action.startswith(SWAP)
        return dataclasses.replace(advice, action=f"{of}{said} ({why})", low=0.0, high=0.0)
    if rule.name in BOUND_ALONE:
        return dataclasses.replace(advice, low=0.0, high=0.0)
    high = min(max(advice.high, 0.0), most)
    return dataclasses.replace(advice, low=min(max(advice.low, 0.0), high), high=high)


def _recovered_at_roofline(view: View, group: Group, advice: Advice) -> float:
    """What would be recovered at the roofline: on the critical path, all above it. The bound of Python is zero."""
    if not group.is_modelled or (not group.gap and group.typical.limit is None):
        return 0.0
    return max(advice.high, min(view.excess(), view.critical, view.seconds))


def _hotspot(group: Group, view: View, advice: Advice, applied: Collection[str]) -> Hotspot:
    entry = group.typical
    between = bool(group.gap)
    work = group.work
    return Hotspot(
        op=group.op,
        module=group.place.module,
        source=group.place.source,
        shapes=group.shapes,
        calls=len(group.entries),
        seconds=group.seconds,
        share=view.share,
        bottleneck=view.bottleneck,
        peak=entry.limit.peak if entry.limit and not between else "",
        achieved=None if between or not group.is_modelled or entry.limit is None else view.achieved_share,
        low_s=advice.low,
        high_s=advice.high,
        action=advice.action,
        flop=work.flop,
        bytes=work.read + work.written or _of_arguments(group),
        modelled=group.is_modelled,
        parts=group.parts,
        kernels=group.kernels,
        allows_s=_recovered_at_roofline(view, group, advice),
        op_kernel=view.kernel,
        optimization=advice.optimization,
        applied=advice.optimization in applied,
        unknown_gain=advice.unknown,
        code=source_lines(group.place.file, group.place.source),
        layers=layers_text(group.place.module, [entry.call.place.path for entry in group.entries]),
    )


def _of_arguments(group: Group) -> float:
    """Bytes of the arguments of operators of the program's own, and of what they left behind: all that is known."""
    calls = [entry.call for entry in group.entries if not group.gap and is_custom_op(entry.call.name)]
    return float(sum(total_bytes(Arguments(call).all_operands) + sum(size for _, size in call.made) for call in calls))


def drop_promises(hotspots: Sequence[Hotspot]) -> tuple[Hotspot, ...]:
    """The hotspots of a run that others disturbed: what was called, and how long it took then, but no claim."""
    return tuple(
        dataclasses.replace(
            r, low_s=0.0, high_s=0.0, allows_s=0.0, achieved=None,
            action="not predicted: other processes used the machine" if r.action.startswith(SWAP) else r.action,
        )
        for r in hotspots
    )  # fmt: skip


def widen_ranges(hotspots: Sequence[Hotspot]) -> tuple[Hotspot, ...]:
    """The hotspots of rough figures, their intervals wider."""
    return tuple(
        dataclasses.replace(
            r, low_s=r.low_s * (1 - WIDER), high_s=min(r.high_s * (1 + WIDER), max(r.high_s, r.allows_s))
        )
        for r in hotspots
    )


def rescale_to_fix(hotspots: Sequence[Hotspot], fix: Fix) -> tuple[Hotspot, ...]:
    """The hotspots once a fix has been predicted. What kernels are then said to recover is what the fix's swap is
    predicted to gain, and nothing if the swap was rejected or not tried."""
    swapping = [one for one in fix.optimizations if one.optimization == "swap"]
    if fix.ended and not any(one.applied or one.outcome == REJECTED or not one.needs_s for one in swapping):
        return tuple(hotspots)  # it was not tried: nothing is known beyond what was
    promised = sum(r.high_s for r in hotspots if _swapped(r))
    swaps = [one.predicted_gain_s or 0.0 for one in fix.optimizations if one.applied and one.optimization == "swap"]
    gain = sum(swaps) if fix.optimizations else fix.told_prediction_s or 0.0
    at_hand = 0.0 if fix.refused or not fix.rounds else max(0.0, gain)
    share = min(1.0, at_hand / promised) if promised else 1.0
    return tuple(_shared(r, share) if _swapped(r) else r for r in hotspots)


def _shared(hotspot: Hotspot, share: float) -> Hotspot:
    """A swap's hotspot with that share of its recoverable time; what gains nothing is no next action."""
    action = hotspot.action
    if not share * hotspot.high_s:
        action = f"{hotspot.op_kernel} is not applied by the fix"
    return dataclasses.replace(hotspot, low_s=hotspot.low_s * share, high_s=hotspot.high_s * share, action=action)


def _swapped(hotspot: Hotspot) -> bool:
    return bool(hotspot.op_kernel) and hotspot.action.startswith(SWAP)
