"""The record of a diagnosis, made from what was measured: the same on every device, figures or none."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

import torch

from kernelworks.diagnose.account.account import account, time_breakdown
from kernelworks.diagnose.account.compile_findings import program_findings
from kernelworks.diagnose.account.hotspots import drop_promises, find_hotspots, rescale_to_fix, widen_ranges
from kernelworks.diagnose.account.program_run import module_tree, operator_spans
from kernelworks.diagnose.forecast.device import Device
from kernelworks.diagnose.forecast.races import Races
from kernelworks.diagnose.sentence import (
    NO_GAIN,
    RoughFigures,
    ambiguous,
    clauses,
    findings,
    notes,
    sentence,
    unmodelled_ops,
)
from kernelworks.profile.program import versions
from kernelworks.profile.timeline import Timeline
from kernelworks.profile.trace import without_collection
from kernelworks.records import Diagnosis, Fix
from kernelworks.report.diagnose import sort_worst_first

__all__ = ["make_diagnosis", "with_alarms", "with_fix"]


def make_diagnosis(
    program: str,
    timeline: Timeline,
    device: Device,
    races: Races | None = None,
    *,
    fix: Fix | None = None,
    rough: bool = False,
) -> Diagnosis:
    """The record of a timeline, live or made from a recorded trace. If no window was quiet, nothing is claimed; with
    ``rough`` figures are given and marked. ``races`` ask which kernels a swap would take; by default no call is
    benchmarked.
    """
    wall, silent = timeline.wall, timeline.loud and not rough
    with without_collection():
        groups = account(timeline, device)
        parts = time_breakdown(groups, wall, device.told_parts)
        found, problems = find_hotspots(groups, wall, races or device.races(0.0, None), fix)
        gpu, more = device.device_findings(timeline)
        more = (*program_findings(timeline, groups), *more)
    marked = RoughFigures(timeline.noise, min(timeline.walls), max(timeline.walls)) if timeline.loud and rough else None
    if fix is not None:
        fix = dataclasses.replace(fix, rough=rough and bool(fix.ambiguous))
        found = rescale_to_fix(found, fix)
    unforeseen = silent or (marked is not None and marked.far_apart)
    found = drop_promises(found) if unforeseen else widen_ranges(found) if marked else found
    left = {} if unforeseen else {name: its.remaining_problem(found) for name, its in problems.items()}
    grouped, found = found, tuple(sort_worst_first(found))
    numbers = {id(hotspot): number for number, hotspot in enumerate(found)}
    unknown = bool(device.peaks.unknown)
    said = ambiguous(timeline.noise, unknown=unknown) if silent else sentence(parts, found, wall, fix, marked)
    return Diagnosis(
        program=program,
        sentence=said,
        wall_s=wall,
        hotspots=found,
        time_breakdown=parts,
        unmodelled=unmodelled_ops(found),
        findings=findings(left, wall) + (() if silent else more),
        threads=torch.get_num_threads(),
        peaks=device.peaks,
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        fix=fix,
        gpu=gpu,
        ambiguous=str(timeline.noise) if silent else "",
        rough=marked is not None,
        walls_s=tuple(timeline.walls),
        clauses=() if silent else clauses(parts, found, wall, fix, marked),
        disturbed=str(timeline.noise) if marked else "",
        notes=notes(timeline),
        modules=module_tree(groups, wall),
        spans=operator_spans(groups, [numbers[id(hotspot)] for hotspot in grouped]),
    )


def with_alarms(diagnosis: Diagnosis, alarms: Sequence[str]) -> Diagnosis:
    """With the slow paths that it takes, which come before all else: to leave them is to gain."""
    if not alarms:
        return diagnosis
    said = f"slow path: {alarms[0]}; {diagnosis.sentence}"
    before = diagnosis.clauses or (diagnosis.sentence,)
    told = tuple(clause for clause in before if not clause.startswith(NO_GAIN))
    return dataclasses.replace(diagnosis, alarms=tuple(alarms), sentence=said, clauses=told)


def with_fix(diagnosis: Diagnosis, fix: Fix) -> Diagnosis:
    """A diagnosis that was made before its fix, with that."""
    parts, wall, walls = diagnosis.time_breakdown, diagnosis.wall_s, diagnosis.walls_s
    marked = RoughFigures(diagnosis.disturbed, min(walls), max(walls)) if diagnosis.rough else None
    before = diagnosis.sentence.removesuffix(sentence(parts, diagnosis.hotspots, wall, None, marked))
    fix = dataclasses.replace(fix, rough=diagnosis.rough and bool(fix.ambiguous))
    found = tuple(sort_worst_first(rescale_to_fix(diagnosis.hotspots, fix)))
    said, told = sentence(parts, found, wall, fix, marked), clauses(parts, found, wall, fix, marked)
    return dataclasses.replace(diagnosis, hotspots=found, fix=fix, sentence=before + said, clauses=told)
