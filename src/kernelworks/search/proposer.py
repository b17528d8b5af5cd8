"""What a proposer is: it sees what was judged and proposes drafts; it neither builds nor judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernelworks.judge.problem import Problem
from kernelworks.records.judgement import Judgement

__all__ = ["Draft", "Proposer", "Setting", "StoredCandidate", "UnfitProposer"]


@dataclass(frozen=True)
class Draft:
    """A candidate that nobody has judged. ``code`` is the whole text of a file of the problem's candidate format.

    ``detail`` is the proposer's own, in JSON's types: the point of a space, the moves of a schedule, the place of a
    transcript. It is kept, and comes back in ``StoredCandidate``.
    """

    code: str
    language: str  # "torch", "triton", "c++", "cuda"
    proposer: str
    parents: tuple[str, ...] = ()  # ids of candidates that it was made from
    note: str = ""  # the hypothesis, in a line
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredCandidate:
    """A candidate of the store. ``id`` is the hash of its problem and its code, ``number`` its place in the order of
    judging, ``judgement`` is None while nobody has judged it."""

    id: str
    number: int
    draft: Draft
    judgement: Judgement | None = None

    @property
    def right(self) -> bool:
        return self.judgement is not None and self.judgement.verdict == "right"

    @property
    def seconds(self) -> float | None:
        """Of a call, net of what an answer without work takes; None where it is not right or was not timed."""
        if self.judgement is None or not self.right:
            return None
        return next((pace.median_s for pace in self.judgement.paces if pace.variant == "candidate"), None)

    def ratio(self, over: str = "eager") -> float | None:
        """How many times as quick as a variant; None if it is not right or was not timed against it."""
        if self.judgement is None or not self.right:
            return None
        return next((speed.ratio for speed in self.judgement.speeds if speed.over == over), None)


class Proposer(Protocol):
    """One way to come by drafts. A proposer that has nothing more to propose returns an empty list."""

    name: str

    def propose(self, problem: Problem, seen: Sequence[StoredCandidate], most: int) -> list[Draft]:
        """At most ``most`` drafts, none of which is in ``seen`` already where the proposer can help it."""
        ...

    def observe_verdict(self, seen: StoredCandidate) -> None:
        """The verdict of one of its drafts."""
        ...


class UnfitProposer(ValueError):
    """A proposer can do nothing for this search; the text says why, and what it would need."""


@dataclass(frozen=True)
class Setting:
    """What a proposer is made for. ``least_s`` is the least time of a call on a number of threads, by what the machine
    was measured to do (None where the problem allows no verdict). ``options`` are those of the command line that were
    given for this proposer, by name. Beside the ``store`` a proposer may keep files of its own."""

    problem: Problem
    over: str
    threads: int
    seed: int
    least_s: Callable[[int], float] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    store: Path | None = None
