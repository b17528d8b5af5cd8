"""Ladders on disk: ``ladders/<name>/problem.py`` and ``NN_idea.cpp``, one idea a rung, each with a header that says
what it tests and what it expects before anything is measured.

A header is the first lines of the file, ``// key: text``, longer texts continued on lines indented by two more:

| key | meaning |
|---|---|
| title | the idea |
| target | what it is compiled for: a target of ``build.cpp`` |
| threads | ``1``, or ``1, all`` |
| rows | how many rows of the problem a slow rung is timed on; all without it |
| loads | bytes that each multiply-add moves, by level: ``L1 12, L3 4`` |
| hypothesis | what the rung before waited on, and why this one should not |
| predicts | times the rate of the rung before; none for the first |
| next | what this one waits on |
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from kernelworks.build.cpp import TARGETS
from kernelworks.climb.problem import Problem, problem_of

__all__ = ["Ladder", "Rung", "folders", "ladder_named"]

CHECKOUT = Path(__file__).resolve().parents[3] / "ladders"
KEYS = {"title", "target", "threads", "rows", "loads", "hypothesis", "predicts", "next"}
NEEDED = {"title", "target", "threads", "hypothesis", "next"}


@dataclass(frozen=True)
class Rung:
    """One step. ``threads`` is (1,) or (1, 0), 0 for all cores; ``rows`` 0 means all."""

    number: int
    path: Path
    title: str
    target: str
    threads: tuple[int, ...]
    rows: int
    loads: dict[str, float]
    hypothesis: str
    predicts: float | None
    next: str

    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def code(self) -> str:
        """The file without its header."""
        return "".join(self.text().splitlines(keepends=True)[_header_lines(self.text()) :])

    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Ladder:
    name: str
    folder: Path
    problem: Problem
    rungs: tuple[Rung, ...]


def folders() -> dict[str, Path]:
    """Ladders by name: those of the working folder first, then those of the checkout this package runs from."""
    found: dict[str, Path] = {}
    for root in (Path("ladders"), CHECKOUT):
        for path in sorted(root.glob("*/problem.py")):
            found.setdefault(path.parent.name, path.parent.resolve())
    return found


def ladder_named(name: str) -> Ladder:
    """A ladder by its name or its folder. Raises ValueError for one that does not exist or cannot be read."""
    known = folders()
    folder = known.get(name, Path(name))
    if not folder.is_dir():
        raise ValueError(f"there is no ladder {name!r}; there are: {', '.join(known) or 'none'}")
    paths = sorted(p for p in folder.iterdir() if re.fullmatch(r"\d\d_\w+\.cpp", p.name))
    if not paths:
        raise ValueError(f"{folder} has no rung: a file NN_idea.cpp")
    return Ladder(folder.name, folder, problem_of(folder), tuple(rung_of(path) for path in paths))


def _header_lines(text: str) -> int:
    lines = text.splitlines()
    return next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))


def rung_of(path: Path) -> Rung:
    """The rung in a file. Raises ValueError where its header lacks a key or has one that means nothing."""
    text = path.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines()[: _header_lines(text)]:
        start = re.match(r"// (\w+): (.*)", line)
        if start:
            key = start[1]
            found[key] = start[2]
        elif key:
            found[key] += " " + line[2:].strip()
    if found.keys() - KEYS or NEEDED - found.keys():
        wrong = ", ".join(sorted(found.keys() - KEYS)) or f"no {', '.join(sorted(NEEDED - found.keys()))}"
        raise ValueError(f"{path.name}: the header must give {', '.join(sorted(NEEDED))}; it has {wrong}")
    if found["target"] not in TARGETS:
        raise ValueError(f"{path.name}: target must be one of {', '.join(TARGETS)}, got {found['target']!r}")
    try:
        return Rung(
            number=int(path.name[:2]), path=path, title=found["title"], target=found["target"],
            threads=tuple(0 if part.strip() == "all" else int(part) for part in found["threads"].split(",")),
            rows=int(found.get("rows", 0)),
            loads={level: float(count) for level, count in re.findall(r"(\w+) ([\d.]+)", found.get("loads", ""))},
            hypothesis=found["hypothesis"], predicts=float(found["predicts"]) if "predicts" in found else None,
            next=found["next"],
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
