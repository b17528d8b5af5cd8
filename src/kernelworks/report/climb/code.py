"""What changed in the code from one rung to the next: a diff that takes no notice of indentation and of moved lines."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelworks.records.climb import Climb, RungResult

__all__ = ["Line", "changes", "hunks", "rewritten", "rungs"]

MIN_MOVED_LETTERS = 16  # letters of a line that is known again where it was moved to
NO_FUNCTIONS = {"alignas", "visibility"}
MIN_KEPT_SHARE = 0.35  # of the lines: with fewer from the rung before, a diff says less than the code itself


@dataclass(frozen=True)
class Line:
    """``mark`` is "+" for what is only in this rung, "-" for what was only in the one before, " " for both."""

    mark: str
    text: str


def changes(code: str, before: str | None) -> list[Line]:
    """The lines of a rung and those of the one before that are gone, in order."""
    new = code.splitlines()
    if before is None:
        return [Line(" ", text) for text in new]
    old = before.splitlines()
    a, b = [_key(text) for text in old], [_key(text) for text in new]
    found: list[Line] = []
    matcher = difflib.SequenceMatcher(lambda key: not _tells(key, 3), a, b, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            found += [Line(" ", text) for text in new[b0:b1]]
            continue
        found += _replaced(old[a0:a1], new[b0:b1])
    return _without_moves(found)


def _replaced(old: Sequence[str], new: Sequence[str]) -> list[Line]:
    """Old lines out, new lines in; what they begin and end with alike, as closing braces, stays."""
    tail = 0
    while tail < min(len(old), len(new)) and _key(old[-1 - tail]) == _key(new[-1 - tail]):
        tail += 1
    head = 0
    while head < min(len(old), len(new)) - tail and _key(old[head]) == _key(new[head]):
        head += 1
    return [
        *(Line(" ", text) for text in new[:head]),
        *(Line("-", text) for text in old[head : len(old) - tail] if text.strip()),
        *(Line("+" if text.strip() else " ", text) for text in new[head : len(new) - tail]),
        *(Line(" ", text) for text in new[len(new) - tail :]),
    ]


def _without_moves(lines: Sequence[Line]) -> list[Line]:
    """Lines that are gone here and there again elsewhere were moved: they count as unchanged where they are now."""
    gone = Counter(_key(x.text) for x in lines if x.mark == "-")
    come = Counter(_key(x.text) for x in lines if x.mark == "+")
    moved = {
        key: min(count, come[key]) for key, count in gone.items() if key in come and _tells(key, MIN_MOVED_LETTERS)
    }
    left, found = {"-": Counter(moved), "+": Counter(moved)}, []
    for line in lines:
        key = _key(line.text)
        if line.mark != " " and left[line.mark][key] > 0:
            left[line.mark][key] -= 1
            if line.mark == "+":
                found.append(Line(" ", line.text))
            continue
        found.append(line)
    return found


def _key(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip())


def _tells(key: str, letters: int) -> bool:
    return len(re.findall(r"\w", key)) >= letters


def rewritten(lines: Sequence[Line]) -> bool:
    """Whether too little is left of the rung before for a diff to be of use; the first rung is not."""
    mine = [line for line in lines if line.mark != "-" and _tells(line.text, 3)]
    kept = sum(line.mark == " " for line in mine)
    return kept < MIN_KEPT_SHARE * len(mine)


def hunks(lines: Sequence[Line], near: int = 2) -> list[tuple[str, list[Line]]]:
    """Runs of lines around each change, each with the name of the function in which it begins."""
    shown = {i + d for i, line in enumerate(lines) if line.mark != " " for d in range(-near, near + 1)}
    found: list[tuple[str, list[Line]]] = []
    function, last = "", -2
    for index, line in enumerate(lines):
        if index in shown:
            if index > last + 1:
                found.append((function, []))
            found[-1][1].append(line)
            last = index
        if line.mark != "-":
            function = "" if line.text.startswith("}") else _function(line.text) or function
    return found


def _function(text: str) -> str:
    """The name of the function whose definition begins in this line."""
    names = re.findall(r"\b(\w+)\(", text) if re.match(r"[A-Za-z_]", text) and not text.rstrip().endswith("}") else []
    return next((name for name in names if name not in NO_FUNCTIONS and not name.startswith("__")), "")


def rungs(record: Climb, sources: Mapping[str, str]) -> list[tuple[RungResult, list[Line]]]:
    """Every rung with its lines; ``sources`` is the code of each file without its header."""
    found, before = [], None
    for rung in record.rungs:
        code = sources.get(rung.file, "").lstrip("\n")
        found.append((rung, changes(code, before)))
        before = code
    return found
