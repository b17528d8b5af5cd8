"""A fix with few seconds leaves out what would spend them on the C++ entry, and says which budget would do."""

import types
from typing import Any

import pytest

from kernelworks.build import native
from kernelworks.diagnose.account.hotspots import _rejection
from kernelworks.diagnose.optimizations.swap import ask_for_the_entry
from kernelworks.profile.budget import Budget, BudgetExceeded


@pytest.mark.parametrize(("seconds", "enough"), [(40.0, False), (240.0, True)])
def test_the_entry_is_asked_for_before_it_is_compiled(
    seconds: float, enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "build_seconds", lambda: native.BUILD_S)
    budget = Budget(seconds, 0.01)
    if enough:
        return ask_for_the_entry(budget)
    with pytest.raises(BudgetExceeded, match="entry of the ops") as error:
        ask_for_the_entry(budget)
    assert error.value.needs_s > native.BUILD_S


def test_an_entry_that_is_there_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_buildable", lambda: False)
    ask_for_the_entry(Budget(0.5, 0.01))


def _tried(**more: Any) -> Any:
    known = {
        "optimization": "fused optimizer",
        "applied": False,
        "gain_s": None,
        "predicted_gain_s": None,
        "needs_s": 0.0,
    }
    return types.SimpleNamespace(**(known | more))


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ([{"predicted_gain_s": -1e-3}, {}], ""),  # the other way was not tried: the advice stands
        ([{"predicted_gain_s": -1e-3}, {"predicted_gain_s": 9e-3, "needs_s": 240.0}], ""),  # for want of time
        ([{"predicted_gain_s": -1e-3}, {"applied": True, "gain_s": 1e-3}], ""),
        ([{"predicted_gain_s": -1e-3}], "fused optimizer is not applied: it is predicted not to gain"),
        ([{"gain_s": -1e-3}], "fused optimizer is not applied: it was measured, and rejected"),
    ],
)
def test_advice_is_withdrawn_only_if_all_its_ways_are_decided(ways: list[dict[str, Any]], said: str) -> None:
    rule: Any = types.SimpleNamespace(optimization="fused optimizer")
    fix: Any = types.SimpleNamespace(optimizations=[_tried(**way) for way in ways])
    assert _rejection(rule, fix) == said
