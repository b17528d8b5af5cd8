"""Whose turn it is: who brings the most for the time, nobody left out, and rest for who has nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernelworks.judge.problem import Problem
from kernelworks.records.search import ProposerResult
from kernelworks.search.bandit import Desk, turn
from kernelworks.search.proposer import Draft, StoredCandidate


@dataclass
class Named:
    name: str

    def propose(self, problem: Problem, seen: Sequence[StoredCandidate], most: int) -> list[Draft]:
        return []

    def observe_verdict(self, seen: StoredCandidate) -> None:
        pass


def played(wins: dict[str, float], costs: dict[str, float], turns: int) -> Counter[str]:
    """How often each has its turn, where its candidates win as often as said and cost so much."""
    draw, desks = random.Random(3), [Desk(Named(name)) for name in wins]
    had: Counter[str] = Counter()
    for _ in range(turns):
        desk = turn(desks, -2)
        assert desk is not None
        name = desk.name
        had[name] += 1
        desk.take_up(
            ProposerResult(name, desk.candidates + 1, desk.right + 1, desk.won + (draw.random() < wins[name]), 1.0,
                    desk.cost_s + costs[name])
        )  # fmt: skip
    return had


def test_who_brings_more_has_more_turns_and_nobody_none() -> None:
    had = played({"a": 0.6, "b": 0.05, "c": 0.05}, dict.fromkeys("abc", 1.0), 200)
    assert had["a"] > 100 and min(had.values()) >= 3


def test_what_costs_more_has_to_bring_more() -> None:
    had = played({"a": 0.3, "b": 0.3}, {"a": 1.0, "b": 8.0}, 200)
    assert had["a"] > 3 * had["b"] > 0


def test_who_has_nothing_rests_until_somebody_brings_something() -> None:
    desks = [Desk(Named("a")), Desk(Named("b"))]
    first = turn(desks, 0)
    assert first is desks[0]
    first.record_drafts(0, 0, 0)
    assert turn(desks, 0) is desks[1]
    for _ in range(3):  # nothing that was not there
        desks[1].record_drafts(4, 0, 0)
    assert turn(desks, 0) is None
    assert turn(desks, 1) is desks[0]
    desks[0].failed = "it raised"
    assert turn(desks, 1) is desks[1]
