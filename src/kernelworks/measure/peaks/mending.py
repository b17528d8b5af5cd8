"""Rates that contradict each other: which of them are not to be believed, and what follows for them from the others.

Noise slows, and nothing quickens: of two rates that contradict each other the one that is too low is likelier wrong,
the more so the more others it contradicts, and if it was measured while others used the machine. What is not
believed is given the value that the others allow and that is nearest to it, and is marked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from kernelworks.measure.peaks.relations import FLOORS, HOST, Relation, rates_of, relations_of
from kernelworks.records import GpuPeaks, GpuRate, Peaks

__all__ = ["NOISE", "doubts", "repair_record", "suspects"]

R = TypeVar("R", bound=Peaks | GpuPeaks)
NOISE = 0.8  # Two measurements of a quiet machine reach this share of what a law asks.
LOW, LOUD = 4.0, 2.0  # times as suspect: beside another one too low, not too high; measured while others ran
Laws = dict[str, dict[str, tuple[float, str]]]  # more -> less -> factor, reason: what follows from others as well


def _closed(relations: Sequence[Relation]) -> Laws:
    """All that follows: of a chain, the product of its factors."""
    laws: Laws = {}
    for more, less, factor, why in relations:
        ours = laws.setdefault(more, {})
        if factor > ours.get(less, (0.0, ""))[0]:
            ours[less] = factor, why
    names = {name for more, its in laws.items() for name in (more, *its)}
    for middle in names:
        below = laws.get(middle, {})
        for more, its in laws.items():
            if middle not in its or more == middle:
                continue
            factor, why = its[middle]
            for less, (further, reason) in below.items():
                if less != more and factor * further > its.get(less, (0.0, ""))[0] * (1 + 1e-9):
                    its[less] = factor * further, why if why == reason else f"{why}; {reason}"
    return laws


def _believed(rate: float) -> bool:
    return math.isfinite(rate) and rate > 0


def _broken(rates: Mapping[str, float], laws: Laws, among: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of points that contradict each other: the one that is too low beside it, and the other."""
    return [
        (more, less)
        for more, its in laws.items() if more in among
        for less, (factor, _) in its.items() if less in among and rates[more] < NOISE * factor * rates[less]
    ]  # fmt: skip


def suspects(rates: Mapping[str, float], relations: Sequence[Relation], loud: Collection[str] = ()) -> dict[str, str]:
    """The points not to be believed, each with the reason; without them no relation is broken. ``loud`` were measured
    while others used the machine."""
    return _suspects(rates, _closed(relations), loud)


def _suspects(rates: Mapping[str, float], laws: Laws, loud: Collection[str]) -> dict[str, str]:
    found = {name: "it is no rate" for name, rate in rates.items() if not _believed(rate)}
    good = set(rates) - set(found)
    broken = _broken(rates, laws, good)
    while broken:
        weights: dict[str, float] = {}
        for low, high in broken:
            for name, weight in ((low, LOW), (high, 1.0)):
                weights[name] = weights.get(name, 0.0) + weight * (LOUD if name in loud else 1.0)
        worst = max(sorted(weights), key=weights.__getitem__)
        low, high = next(pair for pair in broken if worst in pair)
        other = high if low == worst else low
        found[worst] = f"{other} contradicts it: {laws[low][high][1]}"
        good.discard(worst)
        broken = [pair for pair in broken if worst not in pair]
    for name in reversed(list(found)):  # one that only another suspect contradicted
        if _believed(rates[name]) and not any(name in pair for pair in _broken(rates, laws, good | {name})):
            good.add(name)
            del found[name]
    return found


def _allowed(rate: float, name: str, laws: Laws, good: Mapping[str, float]) -> float | None:
    """What the ``good`` ones allow for a point that is nearest to its rate; None if they say nothing."""
    least = max((factor * good[less] for less, (factor, _) in laws.get(name, {}).items() if less in good), default=0.0)
    above = (good[more] / its[name][0] for more, its in laws.items() if name in its and more in good)
    most = min(above, default=math.inf)
    if not least and most == math.inf:
        return None
    if least > most:  # by no more than two measurements differ
        return math.sqrt(least * most)
    return min(max(rate if _believed(rate) else 0.0, least), most) or most


def doubts(record: Peaks | GpuPeaks, loud: Collection[str] = ()) -> dict[str, str]:
    """The ``suspects`` of a record."""
    return suspects(rates_of(record), relations_of(record), loud)


def repair_record(record: R, loud: Collection[str] = ()) -> R:
    """The record without contradictions: what was not to be believed is what follows from the others, or left out if
    nothing does, and said in ``inferred``. The same object if nothing contradicts anything."""
    rates, relations = rates_of(record), relations_of(record)
    laws = _closed(relations)
    found = _suspects(rates, laws, loud)
    if not found:
        return record
    good = {name: rate for name, rate in rates.items() if name not in found}
    said = dict(record.inferred)
    for name, why in found.items():
        rate = _allowed(rates[name], name, laws, good)
        if rate is not None:
            good[name] = rate
        said[name] = f"measured {rates[name]:.3g}: {why}"
    made: R = _put(record, {name: good.get(name) for name in found}, said)
    return made


def _put(record: Any, rates: Mapping[str, float | None], said: dict[str, str]) -> Any:
    if isinstance(record, GpuPeaks):
        return _put_gpu(record, rates, said)
    changed = {
        held: tuple(
            dataclasses.replace(item, **{rate: now})
            for item in getattr(record, held)
            if (now := rates.get(item.name, getattr(item, rate))) is not None
        )
        for held, rate in (("bandwidth", "gbs"), ("flops", "gflops"), ("functions", "gops"))
    }
    return dataclasses.replace(record, **changed, inferred=said)


def _put_gpu(record: GpuPeaks, rates: Mapping[str, float | None], said: dict[str, str]) -> GpuPeaks:
    def at(name: str, before: float) -> float:
        now = rates.get(name, before)
        return before if now is None else now

    bandwidth = [(b, rates.get(b.name, b.gbs)) for b in record.bandwidth]
    arithmetic = [
        GpuRate(
            r.dtype, r.unit, at(f"{r.name} burst", r.burst_tflops), at(f"{r.name} sustained", r.sustained_tflops),
            at(f"{r.name} benchmarked", r.benchmarked_tflops),
        )
        for r in record.rates
    ]  # fmt: skip
    single: dict[str, Any] = {name: 1 / rate for name, rate in rates.items() if name in FLOORS and rate}
    single |= {name: at(name, getattr(record, name)) for name in HOST}
    functions = {name: rates.get(name, rate) for name, rate in record.functions.items()}
    return dataclasses.replace(
        record, bandwidth=tuple(dataclasses.replace(b, gbs=now) for b, now in bandwidth if now is not None),
        rates=tuple(arithmetic), functions={name: now for name, now in functions.items() if now is not None},
        inferred=said, **single,
    )  # fmt: skip
