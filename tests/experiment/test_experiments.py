"""Experiments: each is whole (a question, points, readings, a page that explains it), and shown everywhere alike."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.experiment import plan as plans
from kernelworks.experiment.list import PLANS, plan_named
from kernelworks.experiment.plan import run_plan
from kernelworks.experiment.walking import walks
from kernelworks.measure.clock.race import TimeStats
from kernelworks.records import to_document
from kernelworks.records.experiment import Experiment
from kernelworks.records.schema import read_record
from kernelworks.report import html
from kernelworks.report.record_view import record_view

ROOT = Path(__file__).resolve().parents[2]
NAMES = [plan.name for plan in PLANS]


@pytest.fixture(scope="module")
def found() -> dict[str, Experiment]:
    """Each experiment, run once. What is timed runs each of its calls once, and the clock says what it likes: no test
    hangs on the machine."""
    ticks = iter(range(1, 1 << 30))

    def stopped(
        calls: Mapping[str, Callable[[], object]], say: Any, *, rough: bool
    ) -> tuple[dict[str, TimeStats], str]:
        for call in calls.values():
            call()
        seconds = {name: 1e-3 * (1 + next(ticks) % 7) for name in calls}
        return {name: TimeStats(s, 0.9 * s, 1.1 * s, 9) for name, s in seconds.items()}, ""

    with pytest.MonkeyPatch.context() as patch:
        for module in {plan.run.__globals__["__name__"]: plan.run.__globals__ for plan in PLANS}.values():
            if "timed_variants" in module:
                patch.setitem(module, "timed_variants", stopped)
        patch.setattr(plans, "timed_variants", stopped)
        return {plan.name: run_plan(plan, lambda said: None) for plan in PLANS}


def test_no_two_have_one_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(ValueError, match="no experiment is called 'strids'; there are strides"):
        plan_named("strids")


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_whole(name: str, found: dict[str, Experiment]) -> None:
    record = found[name]
    assert record.question.endswith("?") and len(record.expected) > 40 and record.readings
    assert record.series and all(len(series.points) > 1 for series in record.series)
    for series in record.series:
        xs = [point.x for point in series.points]
        assert xs == sorted(set(xs)), series.name
        for point in series.points:
            assert point.low <= point.value <= point.high and math.isfinite(point.value)
            assert not record.y.logarithmic or point.value > 0, f"{series.name} at {point.x}"
            assert not record.x.logarithmic or point.x > 0
            assert record.is_timed or point.low == point.high


@pytest.mark.parametrize("name", NAMES)
def test_a_page_explains_it_and_says_how_to_run_it(name: str, found: dict[str, Experiment]) -> None:
    assert f"kernelworks experiment {name}" in (ROOT / found[name].page).read_text(encoding="utf-8")
    assert f"| {name} |" in (ROOT / "docs/reference/experiment.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_terminal_page_and_json_are_of_one_record(name: str, found: dict[str, Experiment], tmp_path: Path) -> None:
    record = found[name]
    path = tmp_path / "record.json"
    path.write_text(to_document(record), encoding="utf-8")
    assert read_record(path) == record and json.loads(path.read_text())["schema"] == "Experiment/1"
    page = html.render_page([record])
    assert "<svg" in page and record.name in page and record._repr_html_()
    from rich.console import Console

    for width in (60, 132):
        console = Console(width=width, force_terminal=False, no_color=True, highlight=False, markup=False)
        with console.capture() as captured:
            console.print(record_view([record], width))
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        assert all(any(line.strip().startswith(series.name[:20]) for line in lines) for series in record.series)


def test_rough_figures_say_so(found: dict[str, Experiment]) -> None:
    rough = dataclasses.replace(found["strides"], rough="other processes used 40% of the cores")
    assert "rough: other processes used 40%" in html.text(rough)
    assert "rough: other processes used 40%" in html.render_page([rough])


# ---------------------------------------------------------------- the command


def test_they_are_listed_and_a_wrong_name_is_usage() -> None:
    listed = CliRunner().invoke(app, ["experiment", "--json"])
    assert [one["name"] for one in json.loads(listed.stdout)] == NAMES
    assert all(name in CliRunner().invoke(app, ["experiment"]).stdout for name in NAMES)
    wrong = CliRunner().invoke(app, ["experiment", "strids"])
    assert wrong.exit_code == 2 and "no experiment is called 'strids'" in wrong.stderr


# ---------------------------------------------------------------- what the C++ walks touch


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32, 64])
def test_a_strided_read_takes_every_element_of_its_stride_and_no_other(stride: int) -> None:
    """Each element holds a bit that says whether its place is a multiple of the stride, and the last one a third."""
    places = torch.arange(4096, dtype=torch.int32)
    x = torch.where(places % stride == 0, 1, 2).to(torch.int32)
    x[4096 - stride] |= 4
    out = torch.zeros(1, dtype=torch.int32)
    walks().strided_read(out, x, stride, 1)
    assert out.item() == 5
