"""The record of a diagnosis, made from what was measured: the same on every device, figures or none."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

import torch

from kernelworks.diagnose.regions import Problem, settled, unpromised, widened
from kernelworks.diagnose.words import Rough, ambiguous, findings, sentence, unmodelled
from kernelworks.observe.program import versions
from kernelworks.observe.timeline import Timeline
from kernelworks.observe.timeline_gpu import GpuTimeline
from kernelworks.records import Ceilings, Diagnosis, Fix, GpuCeilings, GpuTime, Region
from kernelworks.report.diagnose import worst_first

__all__ = ["told"]


def told(
    program: str,
    timeline: Timeline | GpuTimeline,
    ceilings: Ceilings | GpuCeilings,
    footer: Mapping[str, float],
    found: Sequence[Region],
    problems: Mapping[str, Problem],
    *,
    fix: Fix | None = None,
    gpu: GpuTime | None = None,
    more: Sequence[str] = (),
    rough: bool = False,
) -> Diagnosis:
    """What a diagnosis says. Where no window was quiet nothing is claimed; with ``rough`` it is, and marked.

    ``more`` are findings of one device's own.
    """
    wall, silent = timeline.wall, timeline.loud and not rough
    marked = Rough(timeline.noise, min(timeline.walls), max(timeline.walls)) if timeline.loud and rough else None
    if fix is not None:
        fix = dataclasses.replace(fix, rough=rough and bool(fix.ambiguous))
    unforeseen = silent or (marked is not None and marked.far_apart)
    found = settled(found, fix) if fix is not None else tuple(found)
    found = unpromised(found) if unforeseen else widened(found) if marked else found
    found = tuple(worst_first(found))
    lines = findings({} if unforeseen else problems, timeline) + (() if silent else tuple(more))
    lines = tuple(f"rough: {line}" for line in lines) if marked else lines
    return Diagnosis(
        program=program,
        sentence=ambiguous(timeline.noise) if silent else sentence(footer, found, wall, fix, marked),
        wall_s=wall,
        regions=found,
        footer=dict(footer),
        unmodelled=unmodelled(found),
        findings=lines,
        threads=torch.get_num_threads(),
        ceilings=ceilings,
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        fix=fix,
        gpu=gpu,
        ambiguous=str(timeline.noise) if silent else "",
        rough=marked is not None,
    )
