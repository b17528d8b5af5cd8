"""Whose turn it is among proposers: the one that may bring the most for the time that its candidates take.

The share of a proposer is what it has brought (candidates that beat their parents) for the judging time that it used,
and more where little is known of it yet: an upper confidence bound, as for bandits (Auer, Cesa-Bianchi and Fischer
2002, Machine Learning 47). One that proposes nothing rests until somebody brings something that it could go on from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelworks.records.search import ProposerResult
from kernelworks.search.proposer import Proposer

__all__ = ["Desk", "turn"]

CURIOUS = 0.5  # weight of what is not known yet
RIGHT = 0.1  # what a candidate that is right counts for, of one that beats its parents
MOST_KNOWN = 3  # turns in a row that bring nothing but what is there already, before it rests


@dataclass
class Desk:
    """A proposer with what came of it. ``rests_at`` is how many candidates had won when it had nothing to propose;
    ``failed`` is what it raised."""

    proposer: Proposer
    candidates: int = 0
    right: int = 0
    won: int = 0
    cost_s: float = 0.0
    known: int = 0
    rests_at: int = -1
    failed: str = ""

    @property
    def name(self) -> str:
        return self.proposer.name

    @property
    def remark(self) -> str:
        """Why it proposes no more, in its own words (``remark``) where it has any."""
        own = str(getattr(self.proposer, "remark", ""))
        return self.failed or own or ("nothing more to propose" if self.rests_at >= 0 else "")

    def take_up(self, brought: ProposerResult) -> None:
        """What it brought before this run."""
        self.candidates, self.right, self.won, self.cost_s = (
            brought.candidates, brought.right, brought.won, brought.cost_s,
        )  # fmt: skip

    def record_drafts(self, drafts: int, fresh: int, wins: int) -> None:
        """What it said when it was asked."""
        self.known = 0 if fresh else self.known + 1
        if not drafts or self.known >= MOST_KNOWN:
            self.rests_at, self.known = wins, 0

    def is_awake(self, wins: int) -> bool:
        return not self.failed and self.rests_at != wins


def turn(desks: Sequence[Desk], wins: int) -> Desk | None:
    """Whose turn it is; None if nobody has more to propose. One that was never asked comes first."""
    awake = [desk for desk in desks if desk.is_awake(wins)]
    if not awake:
        return None
    unknown = next((desk for desk in awake if not desk.candidates), None)
    if unknown is not None:
        return unknown
    candidates, cost_s = sum(d.candidates for d in desks), sum(d.cost_s for d in desks)
    usual = cost_s / candidates if cost_s else 1.0

    def bound(desk: Desk) -> float:
        spent = max(desk.cost_s / usual, 1.0)  # in candidates of the usual cost
        brought = desk.won + RIGHT * (desk.right - desk.won)
        return brought / spent + CURIOUS * math.sqrt(math.log(candidates + 1) / spent)

    return max(awake, key=bound)
