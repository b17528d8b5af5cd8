"""What is promised can be had: an unknown gain is not 0, and page faults are malloc's alone.

A program is told of its own graphs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kernelworks.compile import backend
from kernelworks.compile.report import Call, CompileReport, Graph
from kernelworks.diagnose.account.account import UNEXPLAINED, USEFUL
from kernelworks.diagnose.account.compile_findings import program_findings
from kernelworks.diagnose.account.hotspots import rescale_to_fix
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.rules import View, fresh_pages
from kernelworks.diagnose.sentence import sentence
from kernelworks.records import Hotspot
from kernelworks.records.fix import NOT_TRIED, REJECTED, TriedOptimization


def _hotspot(**fields: Any) -> Hotspot:
    plain: dict[str, Any] = {
        "op": "layer_norm", "module": "", "source": "", "shapes": "", "calls": 1, "seconds": 0.6, "share": 0.6,
        "bottleneck": "memory DRAM", "peak": "", "achieved": 0.2, "low_s": 0.0, "high_s": 0.0, "action": "",
        "flop": 0.0, "bytes": 0.0, "modelled": True, "parts": {}, "kernels": (), "allows_s": 0.4,
    }  # fmt: skip
    return Hotspot(**plain | fields)


def test_a_kernel_that_was_not_benchmarked_is_unknown_and_not_nothing() -> None:
    parts = {USEFUL: 0.6, UNEXPLAINED: 0.0}
    known, unknown = sentence(parts, (_hotspot(),), 1.0), sentence(parts, (_hotspot(unknown_gain=True),), 1.0)
    assert "no known optimization is predicted to gain" in known
    assert "predicted to gain" not in unknown and "is unknown, as they were not benchmarked" in unknown
    small = sentence(parts, (_hotspot(), _hotspot(unknown_gain=True, allows_s=1e-5)), 1.0)
    assert "no known optimization is predicted to gain" in small


def test_what_a_swap_would_gain_stays_as_it_was_if_the_budget_left_it_out() -> None:
    swapped = _hotspot(op_kernel="kw.layer_norm: avx512", action="swap in kw.layer_norm: avx512", low_s=0.1, high_s=0.2)
    tried = TriedOptimization("swap", "all modules", "swapped", "", NOT_TRIED, "the budget was over", needs_s=240.0)
    cut = fix_record(1.0, 1.0, ended="the budget was over", optimizations=(tried,))
    assert rescale_to_fix((swapped,), cut) == (swapped,)
    refused = dataclasses.replace(cut, optimizations=(dataclasses.replace(tried, outcome=REJECTED, needs_s=0.0),))
    (left,) = rescale_to_fix((swapped,), refused)
    assert left.high_s == 0.0 and "not applied" in left.action


@pytest.mark.parametrize(
    ("written", "high"), [(1 << 20, 0.4), ((1 << 31) - 1, 0.4), (1 << 31, None)], ids=["small", "most", "too large"]
)
def test_page_faults_promise_what_malloc_can_keep_and_no_more(written: int, high: float | None) -> None:
    view = View(
        op="mul", module="", source="", shapes=((4,),), dtypes=("float32",), calls=1, seconds=1.0, wall=2.0,
        bottleneck="page faults", bound=0.01, parts={"allocation (page faults)": 0.4}, written=float(written),
    )  # fmt: skip
    advice = fresh_pages.RULE.applies(view)
    assert (advice and advice.high) == high


@pytest.fixture
def reported() -> Any:
    before = list(CompileReport.current())
    CompileReport.clear()
    yield CompileReport
    CompileReport.clear()
    for graph in before:
        CompileReport.add(graph)


def test_a_program_is_told_what_became_of_its_own_graphs(reported: Any) -> None:
    for name, op in (("of another program", "rms_norm"), ("its own", "linear")):
        reported.add(Graph(name, 1, [Call(op, "x", 1, "avx2", "faster", 1.5)], modules={f"module {name}"}))
    timeline: Any = SimpleNamespace(
        wall=1.0, compiled=[_ran("module its own"), _ran("one of inductor's")], broken=(), recompiled=(),
        entries=list, calls=[],
    )  # fmt: skip
    (line,) = [line for line in program_findings(timeline, ()) if "serves" in line]
    assert "serves 1 of 1 calls" in line and "linear by avx2" in line and "rms_norm" not in line
    timeline.compiled = [_ran("one of inductor's")]
    assert not [line for line in program_findings(timeline, ()) if "serves" in line]


def _ran(module: str) -> Any:
    return SimpleNamespace(module=module, skipped="", traced=SimpleNamespace(graphs=()))


@pytest.mark.thorough  # inductor compiles
def test_the_files_of_a_graph_are_noted_whether_they_are_new_or_not(reported: Any) -> None:
    x = torch.randn(16, 24)
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(nn.Sequential(nn.Linear(24, 24), nn.Tanh()), backend=backend)(x)
    first, second = reported.current()
    assert first.modules and first.modules & second.modules


def test_what_one_optimization_recovers_of_many_ops_is_not_named_by_the_first_of_them() -> None:
    parts = {USEFUL: 0.5, UNEXPLAINED: 0.0}

    def found(op: str, high: float, optimization: str = "") -> Hotspot:
        return _hotspot(op=op, seconds=0.2, low_s=0.01, high_s=high, allows_s=high, optimization=optimization)

    passes = [found(op, high, "fused optimizer") for op, high in (("sqrt", 0.03), ("div", 0.03), ("mul_", 0.02))]
    copied = found("contiguous", 0.04)
    assert "most of it in sqrt, div and mul_ (fused optimizer)" in sentence(parts, (copied, *passes), 1.0)
    assert "most of it in sqrt and div (fused optimizer)" in sentence(parts, passes[:2], 1.0)
    four = (*passes, found("add_", 0.01, "fused optimizer"))
    assert "most of it in sqrt, div and 2 more ops (fused optimizer)" in sentence(parts, four, 1.0)
    assert sentence(parts, (copied, found("sqrt", 0.2, "fused optimizer"), *passes), 1.0).endswith("most of it in sqrt")
    others = [found(op, 0.03) for op in ("gelu", "add", "softmax")]
    assert sentence(parts, (copied, *others), 1.0).endswith("the largest part of it in contiguous")
