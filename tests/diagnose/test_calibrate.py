"""Predictions are held against the program itself before they are told, until they have held on a kind of machine."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from test_fix_search import WALL, Stand, fixed, in_place, model, nothing_in_place
from torch import nn

from kernelworks.diagnose.fix import search
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.calibrate import holds_here
from kernelworks.diagnose.optimization import Scene
from kernelworks.records.history import Outcome

__all__ = ["model", "nothing_in_place"]  # fixtures


@pytest.mark.parametrize(
    ("says", "really", "predicted"), [(0.5, 0.3, 0.3), (0.1, 0.4, 0.4), (0.5, 0.01, None), (0.3, 0.0, None)]
)
def test_where_predictions_have_not_held_the_program_corrects_them(
    says: float, really: float, predicted: float | None, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prediction of parts by themselves is not told before the program has run with the change."""
    found = fixed(model, monkeypatch, Stand("it", says, really=really), calibrates=True)
    (one,) = found.optimizations
    assert one.predicted_gain_s == (None if predicted is None else pytest.approx(predicted * WALL))
    assert one.applied == (predicted is not None) and "turns of the program itself" in one.how
    assert ("unknown on this machine" in one.how) == (predicted is None)
    if predicted is not None:
        assert found.predicted_gain_s == pytest.approx(predicted * WALL) and not found.unknown_prediction


def test_a_calibrated_prediction_counts_what_is_in_its_place(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    touching = {"touches": frozenset({"one place"})}
    stands = Stand("first", 0.5, really=0.2, candidate=touching), Stand("second", 0.4, really=0.6, candidate=touching)
    found = fixed(model, monkeypatch, *stands, calibrates=True)
    (second,) = (one for one in found.optimizations if one.optimization == "second")
    assert second.applied and second.predicted_gain_s == pytest.approx(second.gain_s, rel=0.02)


def test_predictions_that_held_on_this_kind_of_machine_are_not_run_again() -> None:
    one = SimpleNamespace(candidate=SimpleNamespace(optimization="it"))

    def outcome(told: float, got: float, name: str = "it") -> Any:
        return Outcome("here", "p", name, "", "", WALL, told, told, got, 0.001, True)

    held, missed = outcome(0.05, 0.048), outcome(0.05, 0.01)
    assert holds_here(one, [held] * 4) and holds_here(one, [missed] * 8 + [held] * 8)  # type: ignore[arg-type]
    assert not holds_here(one, [held] * 3) and not holds_here(one, [held] * 8 + [missed] * 3)  # type: ignore[arg-type]
    assert not holds_here(one, [outcome(0.05, 0.048, "another")] * 8)  # type: ignore[arg-type]


def test_what_replaces_what_has_replaced_another_is_told_to_save_all_of_it(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, really = (0.63, 0.62, 0.61), {"first": 0.60, "second": 0.63, "third": 0.66}
    modes = [
        Stand(name, says, really=really[name], candidate={"group": "mode"})
        for name, says in zip(really, said, strict=True)
    ]

    def duel(scene: Scene, one: Try, rivals: Sequence[Try], beside: Sequence[Try]) -> float:
        (rival,) = rivals
        return 1 - (1 - really[one.candidate.says]) / (1 - really[rival.candidate.says])

    monkeypatch.setattr(search, "duel", duel)
    found = fixed(model, monkeypatch, *modes)
    assert in_place(found) == ["third"] and found.gain_s == pytest.approx(0.66 * WALL)
    assert found.predicted_gain_s == pytest.approx(0.66 * WALL, rel=0.01)
    told = {one.says: one.predicted_gain_s for one in found.optimizations[1:]}
    assert told == {  # each of the program with the one before it in place
        "second": pytest.approx(0.03 * WALL, rel=0.01), "third": pytest.approx(0.03 * WALL, rel=0.01),
    }  # fmt: skip
