"""A worker that goes on from what another noted: what was kept is never lost, whenever that worker ends."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.fix import calibrate, supervisor
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.journal import Journal, State, as_state
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.result import NOT_OVER, OVER, so_far
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Promise, Scene
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.profile.program import Program
from kernelworks.records import Diagnosis, Fix
from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED, TriedOptimization

WALL = 0.1
inside: list[str] = []


@dataclasses.dataclass
class Halves:
    """It halves the wall clock, and is predicted to save ``says``; ``fails`` once it is to be put in place anew."""

    name: str
    says: float = 0.5
    fails: Exception | None = None
    fails_at: str = "apply"
    changes: str = ""
    advice: str = ""

    def _may_fail(self, at: str) -> None:
        if self.fails is not None and self.fails_at == at:
            raise self.fails

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        yield Candidate(
            self.name, EVERYWHERE, self.name, code=f"{self.name}()", changes=self.changes, advice=self.advice
        )

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        self._may_fail("predict")
        return Promise(self.says)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        self._may_fail("apply")

        def put() -> Callable[[], None]:
            inside.append(self.name)
            return lambda: inside.remove(self.name)

        return Change(put)


class Noted(Journal):
    """What a search noted: its states, and the fix as it would be."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.fixes: list[Fix] = []

    def note_trial(self, search: Search, one: Try) -> None:
        if not self.states:
            self.note_outcome(search)

    def note_outcome(self, search: Search) -> None:
        self.states.append(as_state(search))
        self.fixes.append(so_far(search))


class Measures:
    most_rounds = 3

    def with_sync(self, program: Program) -> Program:
        return program


def searched(monkeypatch: pytest.MonkeyPatch, *stands: Halves, **more: Any) -> Fix:
    torch.manual_seed(0)
    model, x = nn.Linear(16, 16).eval(), torch.randn(4, 16)

    def program() -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    monkeypatch.setattr(Program, "seconds", lambda self: WALL * 0.5 ** len(inside))
    monkeypatch.setattr(calibrate, "holds_here", lambda one, outcomes: True)
    walls: Any = (WALL, 1.01 * WALL, 0.99 * WALL)
    measures: Any = Measures()
    budget: dict[str, Any] = {"budget_s": 20.0, "say": lambda line: None, "optimizations": stands}
    return Search(Program("p", program), walls, measures, **budget, **more).fix()


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.clear()
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))


def test_what_was_kept_is_in_all_that_the_next_worker_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be ended in each of its steps."""
    first, second = Noted(), Noted()
    searched(monkeypatch, Halves("one"), Halves("two"), journal=first)
    assert len(first.states[-1]["kept"]) == 2
    searched(monkeypatch, Halves("one"), Halves("two"), journal=second, resumed=first.states[-1])
    assert len(second.fixes) > 2
    for noted in second.fixes:
        assert [each["optimization"] for each in noted.plan["candidates"]] == ["one", "two"] and noted.rounds


def test_what_no_budget_would_have_tried_says_so_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may be ended in its first trial, before anything was said of the others."""
    noted = Noted()
    stands = Halves("one"), Halves("narrow", changes="bf16"), Halves("told", advice="do it"), Halves("two")
    searched(monkeypatch, *stands, journal=noted)
    why = {one.optimization: (one.why, one.needs_s > 0) for one in noted.fixes[0].optimizations}
    assert why["one"] == why["two"] == (NOT_OVER, True)
    assert why["narrow"] == ("it changes numbers: allow bf16 to have it tried", False)
    assert why["told"] == ("advice: only the program's author can do it", False)


def test_a_budget_that_is_over_as_it_is_put_in_place_anew_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Noted(), Noted()
    searched(monkeypatch, Halves("one"), journal=first)
    late = Halves("one", fails=BudgetExceeded("compiling takes longer"))
    done = searched(monkeypatch, late, journal=second, resumed=first.states[-1])
    assert all(noted.plan and noted.optimizations[0].outcome == APPLIED for noted in second.fixes)
    assert not done.optimizations  # by which its supervisor knows that it did not get so far


def _progress(tried: tuple[TriedOptimization, ...]) -> supervisor.Progress:
    """Two were kept, one on top of the other; the first is being put in place anew."""
    progress = supervisor.Progress()
    plain = [{"candidate": {"optimization": one.optimization, "says": one.says}} for one in tried]
    for kept, after_s in (([], 1.0), ([1], 0.8), ([0, 1], 0.6)):
        state = {"tries": plain, "kept": kept, "running": None, "steps": []}
        fix = fix_record(1.0, after_s, optimizations=tried, rounds=len(kept), plan={"kept": kept} if kept else {})
        progress.note_outcome(state, fix)
    assert progress.state is not None
    progress.state["running"] = 0
    return progress


TRIED = tuple(TriedOptimization(name, "all", name, "", APPLIED, "it saves", 0.2, 0.2) for name in ("one", "two"))


def test_time_that_is_over_takes_nothing_that_was_kept() -> None:
    progress = _progress(TRIED)
    progress.blame("the budget was over", needs_s=120.0)
    assert progress.fix is not None and progress.fix.plan == {"kept": [0, 1]} and progress.is_over
    assert [one.outcome for one in progress.fix.optimizations] == [APPLIED, APPLIED]


def test_what_ends_the_next_process_is_out_of_the_plan_too() -> None:
    progress = _progress(TRIED)
    progress.blame("its process was ended by SIGSEGV")
    assert progress.fix is not None and progress.fix.plan == {"kept": [1]} and progress.fix.after_s == 0.8
    assert [one.outcome for one in progress.fix.optimizations] == [REJECTED, APPLIED]
    assert progress.state is not None and progress.state["kept"] == [1] and not progress.is_over
    progress.state["running"] = 1
    progress.blame("its process was ended by SIGSEGV")
    assert not progress.fix.plan and progress.fix.after_s == 1.0 and not progress.fix.rounds


def test_a_plan_without_time_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = _progress(TRIED)
    monkeypatch.setattr(supervisor, "_as_far_as_it_got", lambda progress, cause: progress.fix)
    monkeypatch.setattr(supervisor.Progress, "with_seconds", lambda self, found: found)
    progress.diagnosis = types.SimpleNamespace(wall_s=0.1)  # type: ignore[assignment]

    def one_worker(request: object, progress: supervisor.Progress, *rest: object) -> None:
        assert not progress.deaths, "another worker would put the same in place anew"
        progress.blame("it was ended: it was still compiling", needs_s=120.0)

    monkeypatch.setattr(supervisor, "_one_worker", one_worker)
    pool = types.SimpleNamespace(worker_ended=lambda: None)
    found: Any = supervisor._with_workers(None, progress, lambda text: None, pool)  # type: ignore[arg-type]
    assert found.plan == {"kept": [0, 1]}


def test_a_trial_that_ends_its_process_when_no_time_is_left_costs_itself_alone(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rejected; the search is over, not refused, as if the same trial had ended another process before."""
    one = TriedOptimization("one", "all", "one", "", NOT_TRIED, "")
    progress = supervisor.Progress(ends_at=0.0)
    progress.diagnosis = diagnosis

    def one_worker(request: object, progress: supervisor.Progress, *rest: object) -> None:
        plain = {"candidate": {"optimization": "one", "says": "one"}}
        fix = fix_record(1.0, 1.0, optimizations=(one,), ended=OVER, budget_s=60.0)
        progress.note_outcome({"tries": [plain], "kept": [], "running": 0, "steps": []}, fix)
        progress.blame("its process was ended by SIGSEGV")

    monkeypatch.setattr(supervisor, "_one_worker", one_worker)
    pool = types.SimpleNamespace(worker_ended=lambda: None)
    monkeypatch.setattr(supervisor.Progress, "with_seconds", lambda self, found: found)
    found = supervisor._with_workers(None, progress, lambda text: None, pool)  # type: ignore[arg-type]
    assert found.fix is not None and (found.fix.refused, found.fix.ended) == ("", OVER)
    assert found.fix.optimizations[0].outcome == REJECTED and "SIGSEGV" in found.fix.optimizations[0].why


@pytest.mark.parametrize("says", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_predicts_nothing(says: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(monkeypatch, Halves("odd", says), Halves("works"))
    told = [found.predicted_gain_s, *(one.predicted_gain_s for one in found.optimizations)]
    assert found.rounds and all(each is None or math.isfinite(each) for each in told)


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say itself")


@pytest.mark.parametrize("error", [Wordless(), RuntimeError("words \ud800 that no file takes"), RuntimeError(b"x", 3)])
@pytest.mark.parametrize("at", ["predict", "apply"])
def test_an_error_that_cannot_say_itself_costs_itself_alone(
    at: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(monkeypatch, Halves("fails", fails=error, fails_at=at), Halves("works"))
    assert found.plan["candidates"][0]["optimization"] == "works" and not found.refused
    (one,) = (one for one in found.optimizations if one.optimization == "fails")
    assert type(error).__name__ in one.why and one.why.encode() and one.outcome != APPLIED
