"""What was predicted and what came of it: kept line by line, read whatever happened to the file, and learned from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernelworks.records import history
from kernelworks.records.history import Outcome, calibration

ONE = Outcome("kind", "p.py:f", "swap", "all modules", "ops", 1.0, 0.2, 0.2, 0.25, 0.01, taken=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_read_by_kind_of_machine() -> None:
    assert history.read_outcomes() == []
    for kind in ("kind", "other", "kind"):
        history.append_outcome(dataclasses.replace(ONE, kind=kind))
    assert len(history.read_outcomes()) == 3 and len(history.read_outcomes("kind")) == 2
    (other,) = history.read_outcomes("other")
    assert other.date and dataclasses.replace(other, kind="kind", date="") == ONE


@pytest.mark.parametrize("tail", ['{"kind": "ki', "", "\n\n", "null\n", '{"kind": 3}\n', "\xff\xfe\n", '{"a": 1}'])
def test_a_line_that_was_cut_short_costs_itself_alone(tail: str) -> None:
    history.append_outcome(ONE)
    with history.path().open("a", encoding="latin-1") as file:
        file.write(tail)
    history.append_outcome(ONE)
    assert len(history.read_outcomes()) == 2


def test_a_value_of_another_type_is_passed_over() -> None:
    history.append_outcome(ONE)
    history.path().write_text(history.path().read_text().replace("0.25", '"much"'))
    assert history.read_outcomes() == []


@pytest.mark.parametrize(
    ("ratios", "factor"),
    [
        ([], 1.0), ([0.8] * 3, 1.0), ([0.8, 0.9, 0.8, 0.7], 0.8), ([9.0] * 8, 1.0), ([0.5] * 40 + [1.2] * 32, 1.2),
    ],
)  # fmt: skip
def test_the_next_prediction_learns_from_the_last_ones(ratios: list[float], factor: float) -> None:
    found = [dataclasses.replace(ONE, predicted_s=0.2, gain_s=0.2 * ratio) for ratio in ratios]
    found.append(dataclasses.replace(ONE, predicted_s=0.001, gain_s=0.01))  # noise
    assert calibration("swap", found) == pytest.approx(factor) and calibration("other", found) == 1.0


@pytest.mark.parametrize(
    ("told", "gain", "held"), [(0.2, 0.24, True), (0.2, 0.3, False), (0.0, 0.015, True), (-0.01, 0.03, False)]
)
def test_a_prediction_holds_within_a_fifth_or_where_both_are_small(told: float, gain: float, held: bool) -> None:
    assert dataclasses.replace(ONE, told_s=told, gain_s=gain).is_accurate == held
