"""What a candidate's outputs are compared on, and how long that may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernelworks.diagnose.fix import output_check
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.optimization import Candidate, Change, CombinedChange, Promise, Site
from kernelworks.diagnose.verify.agreement import FLOAT64, Agreement
from kernelworks.profile.budget import Budget, BudgetExceeded

COMPILING_S = 30.0


def compared(
    monkeypatch: pytest.MonkeyPatch,
    optimization: str,
    *,
    wall: float = 0.01,
    dropout: bool = False,
    ended: bool = False,
) -> dict[str, Any]:
    """What ``compare`` is asked, with 60 s of 90 left."""
    asked: dict[str, Any] = {}

    def compare(samples: Any, budget_s: float, most_s: float, **more: Any) -> Agreement:
        asked.update(more, most_s=most_s)
        return Agreement(0.0, 0.0, not ended, "not compared: the budget was over", FLOAT64, ended=ended)

    monkeypatch.setattr(output_check, "compare", compare)
    monkeypatch.setattr(output_check, "draws", lambda scene: dropout)
    change = Change(lambda: lambda: None)
    change.random = Change(lambda: lambda: None) if dropout else None
    candidate = Candidate(optimization, Site("process"), "it is changed", changes="bits")
    one = Try(Any, candidate, Promise(0.5, COMPILING_S), change=change)  # type: ignore[arg-type]
    budget = Budget(90.0, wall)
    budget.begun -= 30.0
    scene: Any = SimpleNamespace(budget=budget, wall=wall, say=lambda line: None, answer_samples=[])
    output_check.check_outputs(scene, one, CombinedChange((change,)), [], 5.0)
    return asked


def test_what_is_compiled_is_compared_at_the_sizes_it_was_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At others it would be compiled anew, and what is kept would not be what was compared."""
    asked = compared(monkeypatch, "torch.compile")
    assert asked["whole"] and asked["most_s"] < COMPILING_S
    assert not compared(monkeypatch, "swap")["whole"]


def test_a_long_program_is_compared_on_a_part_with_time_to_compile_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = compared(monkeypatch, "torch.compile", wall=3.0)
    assert not asked["whole"] and asked["most_s"] > COMPILING_S


def test_dropout_has_it_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the original's random numbers: that takes as long as the first time."""
    assert compared(monkeypatch, "torch.compile", dropout=True)["most_s"] > COMPILING_S


@pytest.mark.parametrize("same", [True, False])
def test_what_was_compared_with_itself_says_nothing_of_the_next(same: bool) -> None:
    """An optimizer's own steps are what it was held against, whatever malloc does beneath it."""
    kept, change = (
        Change(lambda: lambda: None, "itself", same_numbers=same),
        Change(lambda: lambda: None, "torch's steps"),
    )
    before = Try(Any, Candidate("first", Site("process"), ""), change=kept)  # type: ignore[arg-type]
    before.agreement = Agreement(0.0, 0.0, True, "", "itself")
    one = Try(Any, Candidate("then", Site("process"), "", changes="bits"), change=change)  # type: ignore[arg-type]
    scene: Any = SimpleNamespace(budget=Budget(90.0, 0.01), wall=0.01)
    output_check.check_outputs(scene, one, CombinedChange((kept, change)), [before], 5.0)
    assert one.agreement is not None and one.agreement.against == ("torch's steps" if same else "itself")


def test_a_comparison_without_a_verdict_rejects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BudgetExceeded, match="verifying it took longer than"):
        compared(monkeypatch, "torch.compile", ended=True)
