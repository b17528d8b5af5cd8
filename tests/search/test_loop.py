"""The loop with a judge that runs nothing: what is asked of whom, what is kept, why it ends, what is said of the best.
And its record, its page, its verb."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pretended import PARENT, PROBLEM, TEXT, Pretended, judgement
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.judge.problem import Misread, Problem
from kernelworks.records import from_json, to_json
from kernelworks.records.judgement import Judgement
from kernelworks.records.search import Search
from kernelworks.report.search import sentence
from kernelworks.search import proposers, stopping
from kernelworks.search.proposer import Draft, Setting, StoredCandidate, UnfitProposer
from kernelworks.search.stopping import Stopping
from kernelworks.search.store import Store

Run = Callable[..., Search]


class Scripted:
    """Proposes the texts that it was made with, each a child of the quickest so far, and hears what came of them."""

    def __init__(self, name: str, texts: Sequence[str], raises: str = "") -> None:
        self.name, self.texts, self.raises = name, list(texts), raises
        self.asked: list[int] = []
        self.heard: list[StoredCandidate] = []

    def propose(self, problem: Problem, seen: Sequence[StoredCandidate], most: int) -> list[Draft]:
        if self.raises:
            raise RuntimeError(self.raises)
        self.asked.append(most)
        quickest = max(seen, key=lambda s: s.ratio() or 0.0, default=None)
        parents = (quickest.id,) if quickest is not None else ()
        some, self.texts = self.texts[:most], self.texts[most:]
        return [Draft(text, "torch", self.name, parents, note=f"a text of {len(text)}") for text in some]

    def observe_verdict(self, seen: StoredCandidate) -> None:
        self.heard.append(seen)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PARENT, encoding="utf-8")
    return tmp_path / "mine.py"


def only(monkeypatch: pytest.MonkeyPatch, *some: Scripted) -> None:
    monkeypatch.setattr(proposers, "PROPOSERS", {one.name: lambda _, one=one: one for one in some})


def text(number: float) -> str:
    return f"# QUICK {number}\nclass ModelNew:\n    pass\n"


# ---------------------------------------------------------------- what it does


def test_it_finds_the_best_point_and_judges_it_again(searched: Run, parent: Path) -> None:
    found = searched(parents=[parent], proposers=["parameters"])
    assert found.stopped == "nothing left" and found.outcome == "better"
    assert found.judged == found.judged_now == 20 == len(found.candidates)
    assert found.best is not None and found.best.again is not None
    assert "TILE = 32" in found.best.code and "UNROLL = 4" in found.best.code
    assert found.best.tried.ratio == 4.0 and found.begun_with == pytest.approx(4 / 2.6)
    begun, brought = found.by_proposer
    assert (begun.proposer, begun.candidates, brought.proposer, brought.candidates) == ("given", 1, "parameters", 19)
    assert brought.remark == "every point was tried" and brought.won >= 1
    assert found.cost_s is not None and found.flop == 2e5 and found.limit_s == 1e-4
    assert from_json(Search, to_json(found)) == found


def test_what_it_began_with_is_judged_again_beside_what_is_to_be_better(
    searched: Run, pretended: type[Pretended], parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finds = pretended.finds

    def unsure_at_first(source: str) -> Judgement:
        found = finds(source)
        if source != PARENT or pretended.judged.count(PARENT) > 1:
            return found
        wide = tuple(dataclasses.replace(one, low=0.1, high=10.0) for one in found.speeds)
        return dataclasses.replace(found, speeds=wide)

    monkeypatch.setattr(pretended, "finds", staticmethod(unsure_at_first))
    found = searched(parents=[parent], proposers=["parameters"])
    assert pretended.judged.count(PARENT) == 2 and found.outcome == "better"


def test_a_judge_is_told_what_comes_next(searched: Run, pretended: type[Pretended], parent: Path) -> None:
    found = searched(parents=[parent], proposers=["parameters"], most=7)
    coming, judged = pretended.coming[: found.judged], pretended.judged[: found.judged]
    told = [(later, judged[at + 1 : at + 1 + len(later)]) for at, later in enumerate(coming)]
    assert all(later == came for later, came in told) and any(later for later, _ in told)
    assert not any(coming[-1:]) and not any(pretended.coming[found.judged :])


def test_it_goes_on_where_it_stopped_and_judges_nothing_twice(
    searched: Run, pretended: type[Pretended], parent: Path
) -> None:
    first = searched(parents=[parent], proposers=["parameters"], most=7)
    assert (first.stopped, first.judged) == ("count", 7)
    again = searched(parents=[parent], proposers=["parameters"], most=7)
    assert again.judged_now == 0 and again.best == first.best
    on = searched(parents=[parent], proposers=["parameters"], most=15)
    assert on.judged == 15 and on.judged_now == 8 and on.candidates[:7] == first.candidates
    once_more = [t for t in on.candidates if t.ratio is not None]
    assert len(pretended.judged) - 15 <= 2 * 3 < len(once_more)  # but for those that were judged again at an end
    assert len(set(pretended.judged)) == 15


def test_what_was_proposed_and_not_judged_is_judged_first(
    searched: Run, pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, Scripted("one", [text(1 + i / 10) for i in range(4)]))
    finds = pretended.finds

    def dies(source: str) -> Judgement:
        if len(pretended.judged) == 3:
            raise SystemExit("killed")
        return finds(source)

    monkeypatch.setattr(pretended, "finds", staticmethod(dies))
    with pytest.raises(SystemExit):
        searched(proposers=["one"])
    monkeypatch.setattr(pretended, "finds", staticmethod(finds))
    only(monkeypatch, Scripted("one", []))
    found = searched(proposers=["one"])
    assert found.judged == 4 and found.judged_now == 2
    assert [t.ratio for t in found.candidates] == [1.0, 1.1, 1.2, 1.3]


def test_several_propose_by_turns_and_hear_of_their_own(searched: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (
        Scripted("one", [text(1 + i / 8) for i in range(40)]),
        Scripted("two", ["WRONG " * i for i in range(1, 41)]),
    )
    only(monkeypatch, one, two)
    found = searched(most=30)
    brought = {b.proposer: b for b in found.by_proposer}
    assert brought["one"].candidates > brought["two"].candidates >= 4
    assert brought["two"].right == 0 and max(one.asked) == 4
    assert {s.draft.proposer for s in one.heard} == {"one"} and len(one.heard) == brought["one"].candidates
    assert all(s.judgement is not None for s in one.heard + two.heard)


def test_one_that_raises_ends_alone(searched: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Scripted("one", [text(2.0)]), Scripted("two", [], raises="no such thing"))
    found = searched()
    assert found.stopped == "nothing left" and found.outcome == "better"
    assert {b.proposer: b.remark for b in found.by_proposer} == {
        "one": "nothing more to propose",
        "two": "it raised RuntimeError: no such thing",
    }


def test_none_is_the_best_that_is_not_right_twice(
    searched: Run, pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, Scripted("one", [text(3.0), text(2.0), text(1.01)]))
    finds, asked = pretended.finds, list[str]()

    def twice(source: str) -> Judgement:
        asked.append(source)
        return judgement("refused") if source == text(3.0) and asked.count(source) > 1 else finds(source)

    monkeypatch.setattr(pretended, "finds", staticmethod(twice))
    found = searched()
    assert found.best is not None and found.best.tried.ratio == 2.0 and found.outcome == "better"
    assert asked.count(text(1.01)) == 1  # its interval does not reach the best one's


def test_what_is_no_quicker_than_the_noise_is_no_better(searched: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Scripted("one", [text(1.015)]))
    assert searched().outcome == "no better"


def test_where_none_is_right_it_says_so(searched: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Scripted("one", ["WRONG"]))
    found = searched()
    assert found.outcome == "none right" and found.best is None and "none of 1" in sentence(found)


def test_a_problem_without_verdicts_ends_it(
    searched: Run, pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretended, "allows", "the answer hardly depends on its input")
    found = searched()
    assert (found.stopped, found.outcome, found.judged) == ("no verdict", "no verdict", 0)
    assert "hardly depends" in sentence(found)


def test_a_budget_ends_it(searched: Run, pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that each judgement moves on by a second."""
    only(monkeypatch, Scripted("one", [text(1 + i / 100) for i in range(1000)]))
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: float(len(pretended.judged))))
    found = searched(budget_s=50.0)
    assert found.stopped == "budget" and 40 <= found.judged <= 51


def test_an_interrupt_ends_it_after_the_candidate(
    searched: Run, pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, Scripted("one", [text(1 + i / 10) for i in range(9)]))
    finds = pretended.finds

    def interrupted(source: str) -> Judgement:
        if len(pretended.judged) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return finds(source)

    monkeypatch.setattr(pretended, "finds", staticmethod(interrupted))
    before = signal.getsignal(signal.SIGINT)
    found = searched()
    assert (found.stopped, found.judged) == ("interrupted", 2)
    assert found.best is not None and found.best.again is None
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_it_at_once() -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), Stopping(60.0, None, said.append) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.stop_reason(0, 0.0) == "interrupted"
        os.kill(os.getpid(), signal.SIGINT)
    assert said == ["ends after this candidate; once more: at once"]


# ---------------------------------------------------------------- what it is given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"over": "nothing"}, "over takes eager, compiled, ours, got 'nothing'"),
        ({"budget_s": 0.0}, "budget_s takes seconds above 0"),
        ({"most": 0}, "most takes a whole number above 0"),
        ({"proposers": ["nobody"]}, "proposers takes parameters"),
        ({"options": {"nobody.a": "b"}}, "options takes PROPOSER.NAME"),
    ],
)
def test_what_it_cannot_be_given_is_said_before_anything_is_made(
    given: dict[str, Any], said: str, searched: Run, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        searched(**given)
    assert not (tmp_path / "s.sqlite").exists()


def test_a_parent_of_another_format_is_said(searched: Run, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def run(x):\n    return x\n", encoding="utf-8")
    with pytest.raises(Misread, match="no class ModelNew"):
        searched(parents=[tmp_path / "other.py"])


def test_one_that_can_do_nothing_is_left_out_or_said(searched: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(setting: Setting) -> Scripted:
        raise UnfitProposer("it needs an endpoint")

    seen: list[Setting] = []

    def fit(setting: Setting) -> Scripted:
        seen.append(setting)
        return Scripted("two", [text(2.0)])

    monkeypatch.setattr(proposers, "PROPOSERS", {"one": unfit, "two": fit})
    found = searched(options={"two.word": "yes"})
    assert {b.proposer: b.remark for b in found.by_proposer}["one"] == "it needs an endpoint"
    assert seen[-1].options == {"word": "yes"} and seen[-1].least_s is not None and seen[-1].least_s(1) == 1e-4
    with pytest.raises(UnfitProposer, match="one: it needs an endpoint"):
        searched(proposers=["one"])


# ---------------------------------------------------------------- how it is shown


@pytest.fixture
def found(searched: Run, parent: Path) -> Search:
    return searched(parents=[parent], proposers=["parameters"])


def test_a_search_is_a_page(found: Search, tmp_path: Path) -> None:
    page = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("The climb", "The roofline", "The tree", "the roof: L2 read", "TILE = 32", "parameters #"):
        assert words in page, words
    assert page.count("<li>") >= 20  # each candidate in the tree


def test_of_many_candidates_the_tree_shows_the_way_to_the_best(found: Search, tmp_path: Path) -> None:
    chain = [
        dataclasses.replace(
            found.candidates[0], number=i + 1, id=str(i), parents=(str(i - 1),) if i % 50 else (), won=i == 499,
            ratio=2.0 if i == 499 else 1.0, note=f"text {i}",
        )
        for i in range(500)
    ]  # fmt: skip
    page = dataclasses.replace(found, candidates=tuple(chain)).save(tmp_path / "p.html").read_text(encoding="utf-8")
    tree = page.partition("The tree")[2].partition("The quickest")[0]
    assert "text 451<" in tree and "text 499<" in tree and "more, " in tree and "text 7<" not in tree


@pytest.mark.parametrize(
    ("outcome", "stopped", "code"),
    [("better", "budget", 0), ("no better", "count", 1), ("none right", "count", 1), ("no verdict", "no verdict", 3),
     ("no better", "interrupted", 130)],
)  # fmt: skip
def test_the_exit_code_is_the_outcome(
    outcome: str, stopped: str, code: int, found: Search, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, given = dataclasses.replace(found, outcome=outcome, stopped=stopped), dict[str, Any]()
    monkeypatch.setattr(
        importlib.import_module("kernelworks.search"), "search", lambda *_, **k: given.update(k) or made
    )
    (tmp_path / "a.py").touch()
    words = [
        "search",
        str(tmp_path / "a.py"),
        "--proposers",
        "parameters",
        "--with",
        "parameters.a=b=c",
        "--out",
        str(tmp_path / "o"),
    ]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == code
    assert json.loads(result.stdout)["outcome"] == outcome
    assert given["proposers"] == ["parameters"] and given["options"] == {"parameters.a": "b=c"}
    assert made.best is not None and (tmp_path / "o").read_text(encoding="utf-8") == made.best.code


def test_what_is_not_there_is_usage(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(TEXT, encoding="utf-8")
    for words in (["nowhere.py"], [str(tmp_path / "p.py"), "--proposers", "nobody"], ["a.py", "--with", "no"]):
        assert CliRunner().invoke(app, ["search", *words]).exit_code == 2


def test_a_store_can_be_shown_without_a_run(found: Search) -> None:
    from kernelworks.search.loop import result

    with Store.read(found.store) as store:
        shown = result(store)
    assert shown.candidates == found.candidates and shown.best == found.best
    assert PROBLEM.name == shown.problem
