"""A search as data for whoever trains models: problem, candidate, what the judge said, what came next, reward.

One line of JSON a row, in the order of judging: the same store gives the same bytes. Rows are written as they are read,
so a store of any size can be exported.

| format | a row is | which |
|---|---|---|
| ``kernelbook`` | a problem's ``python_code`` and a candidate as ``triton_code``, in KernelBook's columns | right |
| ``kevin`` | one turn of a conversation, with the score of its candidate and its discounted reward | judged |
| ``sft-jsonl`` | ``messages`` as chat models are tuned on: a prompt and the candidate that answers it | better |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kernelworks.judge.formats import kernelbench, kernelbook
from kernelworks.judge.problem import Problem
from kernelworks.machine import environment
from kernelworks.records.search import TriedCandidate
from kernelworks.search.feedback import feedback
from kernelworks.search.model.ask import Message
from kernelworks.search.model.prompt import LANGUAGES, conversation, feedback_message
from kernelworks.search.model.replies import fence_code
from kernelworks.search.proposer import StoredCandidate
from kernelworks.search.store import Store

__all__ = ["FORMATS", "ExportSummary", "Source", "export", "lines"]

# Of Kevin (arXiv 2507.11948): the score of a right kernel is 0.3 and how many times as quick as the baseline it is, of
# any other 0; a turn's reward is the sum of its score and those of the turns after it, each turn discounted by 0.4.
CORRECT, GAMMA = 0.3, 0.4
TURNS = 4  # before a turn that are in its conversation
MOST_HELD = 2048  # candidates whose texts are held
JUDGED_VERDICTS = ("right", "refused")


class Source(Protocol):
    """What is exported: a store, or what has its candidates."""

    problem: Problem
    over: str
    machine: str

    @property
    def history(self) -> Iterable[StoredCandidate]:
        """All candidates with their texts, in order."""
        ...

    def summaries(self) -> Sequence[TriedCandidate]:
        """The same without their texts."""
        ...

    def candidate(self, id: str) -> StoredCandidate | None: ...


@dataclass(frozen=True)
class ExportSummary:
    """What was written, and of which candidates there is no row, by reason."""

    format: str
    problem: str
    candidates: int
    rows: int
    left_out: dict[str, int]
    out: str  # the file, "" for stdout


def export(store: str | Path | Source, format: str, out: str | Path | Callable[[str], object]) -> ExportSummary:
    """Writes a store's rows to a file, all of them or nothing, or hands each line to a function.

    Raises ValueError for a format that there is not, a problem that it does not take, or a file that is no store;
    OSError.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if isinstance(store, (str, Path)):
        with Store.read(store) as found, found.snapshot():
            return export(found, format, out)
    count: Counter[str] = Counter()
    made = lines(store, format, count)
    if callable(out):
        for line in made:
            out(line)
    else:
        path = Path(out)
        environment.write_lines(path, made, f".{path.name}.")
    rows = count.pop("", 0)
    left = dict(sorted(count.items()))
    where = "" if callable(out) else str(out)
    return ExportSummary(format, store.problem.name, rows + sum(left.values()), rows, left, where)


def lines(source: Source, format: str, count: Counter[str]) -> Iterator[str]:
    """A line a row; ``count`` takes the rows as "", and the candidates without one by reason. Raises ValueError."""
    tree = Tree(source)
    make = FORMATS[format](tree)
    for one in source.history:
        tree.hold(one)
        row = make(one)
        if isinstance(row, str):
            count[row] += 1
            continue
        count[""] += 1
        yield json.dumps(row, allow_nan=False) + "\n"


# ---------------------------------------------------------------- the tree of candidates


class Tree:
    """Who came of whom: a candidate's first parent is the turn before it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tried = {one.id: one for one in source.summaries()}
        self.next: dict[str, list[str]] = {}
        self.place: dict[str, tuple[str, int]] = {}  # the first turn of its line, and which turn it is
        for one in sorted(self.tried.values(), key=lambda one: one.number):
            before = self.before(one.id)
            first, turn = self.place[before] if before else (one.id, 0)
            self.place[one.id] = first, turn + 1
            if before:
                self.next.setdefault(before, []).append(one.id)
        self.rewards = self._rewards()
        self._held: dict[str, StoredCandidate] = {}

    def before(self, id: str) -> str:
        """The turn before, "" for a first one."""
        one = self.tried[id]
        return next((p for p in one.parents if p in self.tried and self.tried[p].number < one.number), "")

    def score(self, id: str) -> float:
        one = self.tried[id]
        return CORRECT + (one.ratio or 0.0) if one.verdict == "right" else 0.0

    def _rewards(self) -> dict[str, float]:
        """A turn with several that follow it has the mean of what they bring: what is to be expected from there."""
        found: dict[str, float] = {}
        for id in sorted(self.tried, key=lambda id: -self.tried[id].number):  # a child's number is the larger one
            after = [found[n] for n in self.next.get(id, ()) if self.tried[n].verdict in JUDGED_VERDICTS]
            found[id] = self.score(id) + (GAMMA * sum(after) / len(after) if after else 0.0)
        return found

    def turns_before(self, id: str, most: int) -> list[str]:
        """The last turns before this one, in order."""
        found: list[str] = []
        while len(found) < most and (id := self.before(id)):
            found.append(id)
        return found[::-1]

    def hold(self, one: StoredCandidate) -> None:
        """The last that were read are those that the next ones were made from."""
        while len(self._held) >= MOST_HELD:
            del self._held[next(iter(self._held))]
        self._held[one.id] = one

    def candidate(self, id: str) -> StoredCandidate:
        if id not in self._held:
            one = self.source.candidate(id)
            if one is None:
                raise ValueError(f"the store names the candidate {id!r}, which is not there")
            self.hold(one)
        return self._held[id]

    def about(self, one: StoredCandidate) -> dict[str, Any]:
        """What every row says of its candidate: where it is from, and the verdict."""
        its = self.tried[one.id]
        found = one.judgement
        return {
            "problem": self.source.problem.name, "format": self.source.problem.format, "id": one.id,
            "number": one.number, "parents": list(one.draft.parents), "next": self.next.get(one.id, []),
            "proposer": one.draft.proposer, "language": one.draft.language, "note": one.draft.note,
            "verdict": its.verdict, "reasons": [[c.kind, c.said] for c in found.reasons] if found else [],
            "worst": found.worst if found else None, "ratio": its.ratio, "low": its.low, "high": its.high,
            "over": self.source.over, "seconds": its.seconds, "limit_s": found.limit_s if found else None,
            "bound_by": found.bound_by if found else "", "machine": self.source.machine,
            "score": round(self.score(one.id), 6), "reward": round(self.rewards[one.id], 6),
        }  # fmt: skip


def reply_text(one: StoredCandidate) -> str:
    """A candidate as a reply to its prompt."""
    note = f"Hypothesis: {one.draft.note}\n\n" if one.draft.note else ""
    return f"{note}{fence_code(one.draft.code)}"


def _told(one: StoredCandidate) -> str:
    return feedback(one.judgement) if one.judgement is not None else "It was not judged."


def _first(tree: Tree, language: str) -> list[Message]:
    """The prompt that a conversation begins with."""
    source = tree.source
    asked = language if language in LANGUAGES else ""
    return conversation(source.problem, None, 1, language=asked, machine=source.machine)


# ---------------------------------------------------------------- the formats: a row, or why there is none

Make = Callable[[StoredCandidate], Mapping[str, Any] | str]


def _kernelbook(tree: Tree) -> Make:
    problem = tree.source.problem
    taken = (kernelbench.NAME, kernelbook.NAME)
    if problem.format not in taken:
        raise ValueError(
            f"format kernelbook holds modules with get_inputs: problems of {' and '.join(taken)} are taken, and "
            f"{problem.name} is one of {problem.format}; kevin and sft-jsonl take it"
        )
    code = problem.files[kernelbench.FILE]

    def make(one: StoredCandidate) -> Mapping[str, Any] | str:
        if not one.right:
            return "not right"
        return {
            "entry_point": problem.entry, "original_triton_code": None, "python_code": code,
            "triton_code": one.draft.code, "repo_name": "kernelworks", "module_name": problem.entry, "synthetic": True,
            "uuid": one.number, "licenses": [], "stars": 0, "sha": one.id, "repo_link": "", **tree.about(one),
        }  # fmt: skip

    return make


def _kevin(tree: Tree) -> Make:
    def make(one: StoredCandidate) -> Mapping[str, Any] | str:
        if tree.tried[one.id].verdict not in JUDGED_VERDICTS:
            return "no verdict"
        first, turn = tree.place[one.id]
        messages = _first(tree, one.draft.language)
        for before in tree.turns_before(one.id, TURNS):
            turns = tree.candidate(before)
            messages += [{"role": "assistant", "content": reply_text(turns)}, feedback_message(_told(turns))]
        messages.append({"role": "assistant", "content": reply_text(one)})
        return {
            "trajectory": first, "turn": turn, "messages": messages, "candidate": one.draft.code,
            "feedback": _told(one), "gamma": GAMMA, **tree.about(one),
        }  # fmt: skip

    return make


def _sft(tree: Tree) -> Make:
    source = tree.source

    def make(one: StoredCandidate) -> Mapping[str, Any] | str:
        if not one.right:
            return "not right"
        before = tree.before(one.id)
        if not tree.tried[one.id].won and not (before and tree.tried[before].verdict == "refused"):
            return "no quicker than what it was made from"
        parent = tree.candidate(before) if before else None
        asked = one.draft.language if one.draft.language in LANGUAGES else ""
        messages = conversation(source.problem, parent, 1, language=asked, machine=source.machine)
        return {"messages": [*messages, {"role": "assistant", "content": reply_text(one)}], **tree.about(one)}

    return make


FORMATS: dict[str, Callable[[Tree], Make]] = {"kernelbook": _kernelbook, "kevin": _kevin, "sft-jsonl": _sft}
