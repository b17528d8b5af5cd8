"""Exercises on disk: ``exercises/NAME/``, data alone.

| file | holds |
|---|---|
| ``exercise.toml`` | title, place, the function's declaration, hints, wrong attempts; the keys are below |
| ``README.md`` | the mathematics in half a page, the contract, and what of the language is new here |
| ``start.cpp`` (``.cu``, ``.py``) | what the learner begins with: it compiles, and is wrong |
| ``solution.cpp`` | one solution; the tests verify it |
| ``reference.py`` | ``cases``, ``reference`` and ``bound`` in float64, ``timed``, ``MISTAKES``: see ``case.py`` |

| key of ``exercise.toml`` | meaning |
|---|---|
| title | what is computed, in a few words |
| order | its place in the course |
| family | the family of ops that it belongs to |
| language | ``cpp``, ``cuda`` or ``triton``: which checker it goes to |
| function | the C declaration, without ``extern "C"``; of Triton the call, ``add(x, z, y)`` |
| slices | true: the last two parameters say which slice of the work this call is to do |
| hints | sentences, each of which gives away a little more |
| faster | what to try once it is right |
| ladder | a ladder of ``kernelworks climb`` of the same computation, which goes on from here |
| op | the op of the package that does the same |
| wrong | attempts that a check must refuse: see below |

A wrong attempt has a ``name``, the part of the sentence that must be ``said`` of it, and ``edits``: pairs of a text
that the solution has once and what stands there instead. In the place of edits, or before them, a ``file``.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Exercise", "Parameter", "WrongAttempt", "exercise_named", "exercises", "load_exercise"]

CHECKOUT = Path(__file__).resolve().parents[3] / "exercises"
SHIPPED_EXERCISES = Path(__file__).resolve().parents[1] / "exercises"  # with the wheel
ENDINGS = {"cpp": ".cpp", "cuda": ".cu", "triton": ".py"}
DECLARATION = re.compile(r"\s*(\w+\s+)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*")
PARAMETER = re.compile(r"\s*(?P<const>const\s+)?(?P<type>\w+)\s*(?P<pointer>\*?)\s*(?P<name>\w+)\s*")
ARGUMENT = re.compile(r"\s*(?P<const>)(?P<type>)(?P<pointer>)(?P<name>\w+)\s*")  # of a function in Python


@dataclass(frozen=True)
class Parameter:
    """One parameter of the function: ``const float* x`` is a pointer to ``float`` that is only read. One of a function
    in Python has a name and no type."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool


@dataclass(frozen=True)
class WrongAttempt:
    """A solution with one mistake in it, and what must be said of it."""

    name: str
    said: str
    text: str


@dataclass(frozen=True)
class Exercise:
    """One exercise as its folder has it."""

    name: str
    folder: Path
    title: str
    order: int
    family: str
    language: str
    function: str
    parameters: tuple[Parameter, ...]
    hints: tuple[str, ...]
    wrong: tuple[WrongAttempt, ...]
    slices: bool = False
    faster: str = ""
    ladder: str = ""
    op: str = ""

    @property
    def symbol(self) -> str:
        """The function's name."""
        match = DECLARATION.fullmatch(self.function)
        return match["name"] if match else ""

    @property
    def file_name(self) -> str:
        """What the learner's file is called."""
        return self.name.replace("-", "_") + ENDINGS[self.language]

    @property
    def start_path(self) -> Path:
        return self.folder / f"start{ENDINGS[self.language]}"

    @property
    def solution_path(self) -> Path:
        return self.folder / f"solution{ENDINGS[self.language]}"

    @property
    def text(self) -> str:
        """The page: the mathematics, the contract, what of the language is needed."""
        return (self.folder / "README.md").read_text(encoding="utf-8")


def _parameters(declaration: str, where: Path, language: str) -> tuple[Parameter, ...]:
    whole = DECLARATION.fullmatch(declaration)
    pattern = ARGUMENT if language == "triton" else PARAMETER
    parts = [pattern.fullmatch(part) for part in whole["parameters"].split(",")] if whole else [None]
    if not all(parts):
        raise ValueError(f"{where}: not a declaration of a function: {declaration!r}")
    return tuple(Parameter(p["name"], p["type"], bool(p["pointer"]), bool(p["const"])) for p in parts if p)


def _wrong(entry: dict[str, object], solution: str, folder: Path) -> WrongAttempt:
    """Raises ValueError where an edit's text is not in the solution exactly once."""
    text = solution
    if "file" in entry:
        text = (folder / str(entry["file"])).read_text(encoding="utf-8")
    edits = entry.get("edits", [])
    assert isinstance(edits, list)
    for before, after in edits:
        if text.count(before) != 1:
            raise ValueError(f"{folder}: {entry['name']}: {before!r} is in the solution {text.count(before)} times")
        text = text.replace(before, after)
    if text == solution:
        raise ValueError(f"{folder}: {entry['name']} is the solution")
    return WrongAttempt(str(entry["name"]), str(entry["said"]), text)


@functools.cache
def load_exercise(folder: Path) -> Exercise:
    """One exercise. Raises ValueError where its folder is not as it should be, OSError."""
    path = folder / "exercise.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        language = found["language"]
        if language not in ENDINGS:
            raise ValueError(f"{path}: language must be one of {', '.join(ENDINGS)}, got {language!r}")
        solution = (folder / f"solution{ENDINGS[language]}").read_text(encoding="utf-8")
        return Exercise(
            name=folder.name, folder=folder, title=found["title"], order=found["order"], family=found["family"],
            language=language, function=found["function"], parameters=_parameters(found["function"], path, language),
            hints=tuple(found["hints"]), wrong=tuple(_wrong(w, solution, folder) for w in found["wrong"]),
            slices=found.get("slices", False), faster=found.get("faster", ""), ladder=found.get("ladder", ""),
            op=found.get("op", ""),
        )  # fmt: skip
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def exercises() -> dict[str, Exercise]:
    """All exercises by name, in the order of the course: those of the checkout that this package runs from, or of its
    wheel."""
    found: dict[str, Exercise] = {}
    for root in (CHECKOUT, SHIPPED_EXERCISES):
        for path in root.glob("*/exercise.toml"):
            found.setdefault(path.parent.name, load_exercise(path.parent))
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def exercise_named(name: str) -> Exercise:
    """An exercise by its name, in which _ stands for - too. Raises ValueError if there is none."""
    known, wanted = exercises(), name.replace("_", "-")
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        raise ValueError(
            f"there is no exercise {name!r}; did you mean {near[0]}?" if near
            else f"there is no exercise {name!r}; `kernelworks learn` lists the {len(known)} that there are"
        )  # fmt: skip
    return known[wanted]
