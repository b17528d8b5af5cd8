"""What remedies were said to bring beside what they brought: the figures, the picture on a terminal, the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.records import history
from kernelworks.records.history import Outcome
from kernelworks.records.predictions import PredictionAccuracy, prediction_accuracy
from kernelworks.report import predictions as report
from kernelworks.report.markup import COLOURS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    return tmp_path


def kept(kind: str, remedy: str, predicted: float, told: float, gain: float, wall: float = 1.0) -> None:
    """One outcome, in shares of the wall clock."""
    values = (share * wall for share in (predicted, told, gain))
    history.append_outcome(
        Outcome(kind, "p.py:f", remedy, "all", "says", wall, *values, noise_s=0.01, taken=gain > 0.02)
    )


@pytest.fixture
def lived() -> PredictionAccuracy:
    for _ in range(4):
        kept("cpu 2 cores", "swap", 0.4, 0.32, 0.32)
        kept("cpu 2 cores", "torch.compile", 0.3, 0.3, -0.1, wall=1e-3)
    kept("gpu", "swap", 0.01, 0.01, 0.0)
    return prediction_accuracy()


def test_predictions_are_judged_by_kind_of_machine_and_remedy(lived: PredictionAccuracy) -> None:
    assert (lived.accurate_count, lived.outcome_count) == (5, 9)
    found = {(one.kind, one.optimization): one for one in lived.kept}
    swap, compiled = found["cpu 2 cores", "swap"], found["cpu 2 cores", "torch.compile"]
    small = found["gpu", "swap"]
    assert (swap.held, swap.taken, swap.got, swap.factor) == (4, 4, pytest.approx(0.8), pytest.approx(0.8))
    assert swap.raw_error == pytest.approx(0.08) and swap.error == pytest.approx(0)
    assert compiled.held == 0 and compiled.error == pytest.approx(0.4), "shares of programs of any length"
    assert small.held == 1 and small.got is None, "what is too small says nothing of a ratio"
    assert [k.kind for k in prediction_accuracy(kind="gpu").kept] == ["gpu"]
    assert {k.optimization for k in prediction_accuracy(optimization="swap").kept} == {"swap"}


def test_the_terminal_shows_a_point_for_each_optimization_and_the_diagonal(lived: PredictionAccuracy) -> None:
    shown = CliRunner().invoke(app, ["predictions"])
    assert shown.exit_code == 0
    assert "5 of 9 predictions held (56%)" in shown.output and "\x1b[" not in shown.output
    picture = shown.output[shown.output.index("cpu 2 cores") : shown.output.index("optimization")].splitlines()
    rows = [line for line in picture if "│" in line]
    assert len(rows) == report.HEIGHT
    a = next(row for row in rows if "a" in row)  # swap: got as much as predicted
    b = next(row for row in rows if "b" in row)  # torch.compile: predicted 30%, lost 10%
    assert rows.index(b) > rows.index(next(row for row in rows if row.lstrip().startswith("0%"))), "below nothing"
    assert rows.index(a) < rows.index(b)


def test_every_point_is_inside_its_picture() -> None:
    for share in (-3.0, -0.5, 0.0, 0.001, 0.4, 0.99, 5.0):
        kept("k", "swap", share, share, -share)
    low, high = report._reach(prediction_accuracy().outcomes)
    assert low == pytest.approx(-1) and high == pytest.approx(1), "what lies beyond is drawn at the edge"
    assert CliRunner().invoke(app, ["predictions"]).exit_code == 0


def test_files_and_json(lived: PredictionAccuracy, tmp_path: Path) -> None:
    page, picture = tmp_path / "a" / "t.html", tmp_path / "b" / "t.png"
    assert CliRunner().invoke(app, ["predictions", "--html", str(page), "--png", str(picture)]).exit_code == 0
    text = page.read_text()
    assert text.count("<svg") == 4 and "torch.compile: 0 of 4 held" in text  # for wide windows and for narrow ones
    assert picture.read_bytes().startswith(b"\x89PNG")
    for colour in ("series1", "series2"):  # of the points, and of their marks in the table
        assert f"var(--{colour})" in text[text.index("<svg") : text.index("</svg>")]
        assert f'<span style="color:var(--{colour})">' in text
    assert json.loads(CliRunner().invoke(app, ["predictions", "--json"]).stdout)["kept"][0]["kind"] == "cpu 2 cores"
    assert "predictions held" in lived._repr_html_()


def test_a_colour_on_a_page_has_one_name_for_the_table_and_the_picture() -> None:
    assert [COLOURS[name] for name in report.PAGE_STYLES] == [*report.COLOURS]
    assert len(report.STYLES) == len(report.PAGE_STYLES)


def test_without_a_history_it_says_how_one_comes_about(tmp_path: Path) -> None:
    assert "diagnose PROGRAM --fix" in CliRunner().invoke(app, ["predictions"]).output
    assert CliRunner().invoke(app, ["predictions", "--png", str(tmp_path / "t.png")]).exit_code == 1
