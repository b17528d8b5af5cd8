"""What ``kernelworks show`` prints of any record: the same that the verb which made it prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import (
    AutotuneResult,
    BenchResult,
    ConfigTuning,
    Diagnosis,
    Explanation,
    Fix,
    GpuPeaks,
    MapOp,
    Peaks,
    SwapRecord,
    Verification,
)
from kernelworks.records.base import Record
from kernelworks.records.climb import Climb
from kernelworks.records.compare import Comparison
from kernelworks.records.descent import Descent
from kernelworks.records.experiment import Experiment
from kernelworks.records.judgement import Judgement
from kernelworks.records.model_map import ModelMap
from kernelworks.records.predictions import PredictionAccuracy
from kernelworks.records.problem_check import ProblemCheck
from kernelworks.records.search import Search
from kernelworks.records.trace import TraceDiagnosis
from kernelworks.report import (
    autotune,
    bench,
    check_problem,
    compare,
    descent,
    diagnose,
    explain,
    fix,
    gpu,
    judge,
    machine,
    map,
    predictions,
    search,
    trace,
    verify,
)
from kernelworks.report import map as kernel_maps
from kernelworks.report.climb import terminal as climb
from kernelworks.report.experiment import terminal as experiment
from kernelworks.report.next_steps import Files

__all__ = ["record_view"]

# A record -> what its verb prints of it, for a terminal so many columns wide.
RENDERER_OF_ONE: dict[type[Record], Callable[[Any, int], RenderableType]] = {
    AutotuneResult: lambda one, width: autotune.autotune_result(one),
    Climb: lambda one, width: climb.table(one),
    Comparison: lambda one, width: compare.comparison(one),
    Descent: lambda one, width: descent.descent(one),
    Experiment: experiment.experiment,
    Explanation: lambda one, width: explain.explanation(one),
    Fix: lambda one, width: Group(*text_lines(fix.result_lines(one)), Text(), *fix.optimizations(one, width)),
    GpuPeaks: gpu.gpu,
    Judgement: lambda one, width: judge.judgement(one),
    ModelMap: lambda one, width: kernel_maps.model_map(one),
    Peaks: machine.peaks,
    PredictionAccuracy: predictions.prediction_accuracy,
    ProblemCheck: lambda one, width: check_problem.problem_check(one),
    Search: lambda one, width: search.search(one),
    SwapRecord: lambda one, width: Group(*text_lines(one.lines)),
    TraceDiagnosis: trace.trace_diagnosis,
}
# Several of one kind -> what their verb prints of them all.
RENDERER_OF_SEVERAL: dict[type[Record], Callable[[Sequence[Any]], RenderableType]] = {
    BenchResult: bench.benches,
    ConfigTuning: autotune.config_tunings,
    Verification: verify.verifications,
}


def text_lines(lines: Sequence[str]) -> list[Text]:
    return [Text(line) for line in lines]


def record_view(
    some: Sequence[Record], width: int, *, verbose: bool = False, files: Files | None = None
) -> RenderableType:
    """Records of one kind, as their verb prints them. ``files`` are those of a diagnosis."""
    kind = type(some[0])
    if kind in RENDERER_OF_SEVERAL:
        return RENDERER_OF_SEVERAL[kind](some)
    if kind is MapOp:
        return map.kernel_map([one for one in some if isinstance(one, MapOp)], "", width, verbose=verbose)
    if kind is Diagnosis:
        found = [one for one in some if isinstance(one, Diagnosis)]
        return Group(*(diagnose.diagnosis(one, width, verbose=verbose, files=files) for one in found))
    return Group(*(RENDERER_OF_ONE[kind](one, width) for one in some))
