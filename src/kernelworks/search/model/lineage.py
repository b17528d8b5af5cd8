"""What a model's proposer remembers of the candidates that were seen: few words of each, read once, so that a store of
100 000 costs no more to look at than the last of them."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kernelworks.search.feedback import outcome
from kernelworks.search.proposer import StoredCandidate

__all__ = ["Lineage", "mark"]

BEST = 8  # of those that are right, which may be a parent
REPAIRS = 3  # in a row, before what is refused is left
MEND = 0.5  # how often something that is refused is mended where something else is right
MOST_SUMMARY_LINES = 6  # lines on other candidates in a prompt


def mark(code: str) -> str:
    """The same for texts that differ in white space at the ends of lines and of the text alone."""
    return hashlib.sha256("\n".join(line.rstrip() for line in code.strip().splitlines()).encode()).hexdigest()


@dataclass(slots=True)
class Brief:
    """A candidate in few words. ``at`` is its place among those that were seen."""

    at: int
    id: str
    proposer: str
    parents: tuple[str, ...]
    verdict: str  # "" while nobody has judged it
    seconds: float | None
    line: str


def _brief(at: int, one: StoredCandidate) -> Brief:
    found = one.judgement
    line = f"{one.draft.note or f'a candidate in {one.draft.language}'}: {outcome(found)}" if found else ""
    verdict = found.verdict if found else ""
    return Brief(at, one.id, one.draft.proposer, one.draft.parents, verdict, one.seconds, line)


class Lineage:
    """``read`` what is new, then ask. ``name`` is the proposer whose refused candidates are mended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.marks: set[str] = set()
        self._all: list[Brief] = []
        self._pending: list[int] = []
        self._mended: set[str] = set()  # those that have a child

    def read(self, seen: Sequence[StoredCandidate]) -> None:
        """Candidates that came since, and verdicts of those that had none. ``seen`` only ever grows at its end."""
        places = [*self._pending, *range(len(self._all), len(seen))]
        self._pending = []
        for at in places:
            one = seen[at]
            brief = _brief(at, one)
            if at < len(self._all):
                self._all[at] = brief
            else:
                self._all.append(brief)
                self.marks.add(mark(one.draft.code))
                self._mended.update(one.draft.parents)
            if not brief.verdict:
                self._pending.append(at)

    def mark_mended(self, id: str) -> None:
        """A candidate has a child that was not seen yet."""
        self._mended.add(id)

    def parent(self, draw: random.Random) -> int | None:
        """The place of the next parent: one of the quickest that are right, each half as likely as the one before it;
        or the last of this proposer's own that was refused and that nobody has mended yet; None where there is neither.
        """
        right = [one for one in self._all if one.verdict == "right"]
        quick = heapq.nsmallest(BEST, right, key=lambda one: (one.seconds is None, one.seconds or 0.0, one.at))
        broken = self._broken()
        if broken is not None and (not quick or draw.random() < MEND):
            return broken.at
        place = 0
        while place + 1 < len(quick) and draw.random() < 0.5:
            place += 1
        return quick[place].at if quick else None

    def _broken(self) -> Brief | None:
        """What was refused last, of no more than ``REPAIRS`` in a row."""
        known = {one.id: one for one in self._all if one.verdict == "refused"}
        for one in reversed(self._all):
            if one.verdict != "refused" or one.proposer != self.name or one.id in self._mended:
                continue
            streak, at = 1, one
            while streak <= REPAIRS and at.parents and at.parents[0] in known:
                streak, at = streak + 1, known[at.parents[0]]
            if streak <= REPAIRS:
                return one
        return None

    def summary_lines(self, parent: int | None) -> list[str]:
        """The quickest others and the last others, each in a line: so that nothing is tried twice."""
        others = [one for one in self._all if one.at != parent and one.verdict]
        timed = [one for one in others if one.seconds is not None]
        best = heapq.nsmallest(MOST_SUMMARY_LINES // 2, timed, key=lambda one: one.seconds or 0.0)
        picked = {one.at: one for one in (*best, *reversed(others[-MOST_SUMMARY_LINES:]))}
        return [one.line for one in list(picked.values())[:MOST_SUMMARY_LINES]]
