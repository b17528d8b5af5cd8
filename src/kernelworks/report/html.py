"""Records as a user meets them outside a terminal: a page of their own, and a piece of a notebook's page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rich.console import Console

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
    explain,
    fix,
    judge,
    predictions,
    search,
    trace,
    verify,
)
from kernelworks.report import map as kernel_maps
from kernelworks.report.climb import terminal as climb
from kernelworks.report.diagnosis_page.page_parts import SCRIPTS, STYLES, diagnosis_parts
from kernelworks.report.document import document, read_texts
from kernelworks.report.experiment import page as experiment
from kernelworks.report.machine_page import machine_parts
from kernelworks.report.map_page import MAP_SCRIPTS, MAP_STYLES, map_parts
from kernelworks.report.markup import html
from kernelworks.report.record_view import record_view

__all__ = ["fragment", "render_page", "text"]

Several = Sequence[Any]
TEXT_COLUMNS = 100

# A record, or several of one kind -> title and body.
RENDERERS: dict[type, Callable[[Several], tuple[str, Sequence[str]]]] = {
    BenchResult: lambda some: (f"{_ops(some)} - kernelworks bench", [html(bench.benches(some))]),
    Peaks: lambda some: (some[0].name, machine_parts(*some)),
    Climb: lambda some: (f"{some[0].ladder} - kernelworks climb", [html(climb.table(one)) for one in some]),
    Comparison: lambda some: ("kernelworks compare", [html(compare.comparison(one)) for one in some]),
    Descent: lambda some: (f"{some[0].program} - kernelworks descend", [html(descent.descent(one)) for one in some]),
    Diagnosis: lambda some: (some[0].program, diagnosis_parts(some[0])),
    Experiment: lambda some: (
        f"{some[0].name} - kernelworks experiment",
        [part for one in some for part in experiment.parts(one)],
    ),
    Explanation: lambda some: (f"{_ops(some)} - kernelworks explain", [html(explain.explanation(one)) for one in some]),
    Fix: lambda some: ("kernelworks diagnose --fix", [html(fix.fix(one)) for one in some]),
    GpuPeaks: lambda some: (some[0].name, machine_parts(*some)),
    Judgement: lambda some: (f"{some[0].candidate} - kernelworks judge", [html(judge.judgement(one)) for one in some]),
    ProblemCheck: lambda some: (
        f"{some[0].name} - kernelworks check-problem",
        [html(check_problem.problem_check(one)) for one in some],
    ),
    MapOp: map_parts,
    ModelMap: lambda some: (
        f"{some[0].program} - kernelworks map",
        [html(kernel_maps.model_map(one, verbose=True)) for one in some],
    ),
    Verification: lambda some: (f"{_ops(some)} - kernelworks verify", [html(verify.verifications(some))]),
    Search: lambda some: (f"{some[0].problem} - kernelworks search", search.parts(some[0])),
    AutotuneResult: lambda some: ("kernelworks autotune", [html(autotune.autotune_result(one)) for one in some]),
    SwapRecord: lambda some: ("kernelworks swap", [_text("\n".join(one.lines)) for one in some]),
    PredictionAccuracy: lambda some: ("kernelworks predictions", predictions.parts(some[0])),
    TraceDiagnosis: lambda some: (
        f"{some[0].file} - kernelworks diagnose --trace",
        [html(trace.trace_diagnosis(one, TEXT_COLUMNS)) for one in some],
    ),
    ConfigTuning: lambda some: (f"{_ops(some)} - kernelworks autotune", [html(autotune.config_tunings(some))]),
}


def _ops(some: Several) -> str:
    return ", ".join(dict.fromkeys(one.op for one in some))


def _text(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _parts(some: Several) -> tuple[str, Sequence[str]]:
    kinds = {type(one) for one in some}
    kind = kinds.pop() if len(kinds) == 1 else None
    return RENDERERS[kind](some) if kind in RENDERERS else ("kernelworks", [_text("\n".join(map(repr, some)))])


def render_page(some: Several) -> str:
    """One self-contained HTML page."""
    title, parts = _parts(some)
    return document(title, parts, ALL_STYLES, ALL_SCRIPTS)


ALL_STYLES = (*STYLES, "style/shown.css", *MAP_STYLES)
ALL_SCRIPTS = (*SCRIPTS, *MAP_SCRIPTS)
# Only where a script is: a page's tables are sorted, a notebook's are not.
NOTEBOOK_CSS = """
& { padding: 12px 16px 16px; }
th button { pointer-events: none; }
th button::after { content: none; }"""
DATA = re.compile(r"<script type=.application/json.*?</script>", re.S)  # what a page's own scripts read


def text(record: Any) -> str:
    """A record in plain text: what its verb prints, or its ``repr`` if no verb prints it alone."""
    if isinstance(record, AutotuneResult):
        return autotune.text(record)
    if type(record) not in PRINTED_ALONE:
        return repr(record)
    console = Console(width=TEXT_COLUMNS, force_terminal=False, no_color=True, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(record_view([record], TEXT_COLUMNS))
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


# What IPython shows of a record on a terminal.
PRINTED_ALONE = (Comparison, Diagnosis, Experiment, Explanation, Fix, ModelMap, TraceDiagnosis)


def fragment(some: Several) -> str:
    """A piece of a page, with the pages' styles for itself alone and without a script."""
    _, parts = _parts(some)
    css = read_texts(ALL_STYLES)
    scoped = re.sub(r"(?<![\w-])(:root|body)(?= \{)", "&", css)
    body = DATA.sub("", "\n".join(part for part in parts if part))
    body = re.sub(r"(<style[^>]*>)\s*\*\s*\{", r"\1.kernelworks svg * {", body)  # a picture's own rule
    return f'<style>\n.kernelworks {{\n{scoped}\n{NOTEBOOK_CSS}\n}}</style>\n<div class="kernelworks">\n{body}\n</div>'
