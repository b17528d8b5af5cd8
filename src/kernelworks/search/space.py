"""The space that a candidate's own text declares, and the text at another point of it.

A module-level ``SPACE = {"TILE": [8, 16, 32], "FLAGS": ["-O2", "-O3"]}`` beside module-level constants of those names
(``TILE = 8``): a candidate that says what of it may be otherwise. The text at another point has other constants; all
else of it, every line, stays where it is.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelworks.judge.formats import text
from kernelworks.judge.problem import Misread

__all__ = ["NAME", "Point", "Space", "Value", "space_in"]

NAME = "SPACE"
Value = bool | int | float | str
Point = dict[str, Value]


@dataclass(frozen=True)
class Space:
    """``choices`` of each name, in their order; ``at`` is where the text stands; ``family`` is the same for every text
    that differs from this one in these constants alone."""

    choices: Mapping[str, tuple[Value, ...]]
    at: Mapping[str, Value]
    family: str
    source: str

    @property
    def size(self) -> int:
        return math.prod(len(values) for values in self.choices.values())

    def points(self) -> Iterator[Point]:
        """All of them, the last name's values first."""
        for values in itertools.product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))

    def text_at(self, point: Mapping[str, Value]) -> str:
        return text.with_constants(self.source, point)


def space_in(source: str) -> Space | None:
    """The space of a text, None where it declares none. Raises Misread if what it declares is no space."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    stated = _assigned(tree)
    if NAME not in stated:
        return None
    try:
        said = ast.literal_eval(stated[NAME])
    except ValueError:
        raise Misread(
            f"{NAME} is no literal; a dictionary of lists of numbers, texts or booleans is accepted"
        ) from None
    if not isinstance(said, dict) or not said:
        raise Misread(f"{NAME} is {str(said)[:60]!r}; a dictionary of lists is accepted")
    choices: dict[str, tuple[Value, ...]] = {}
    at: Point = {}
    for name, values in said.items():
        choices[name] = _choices(name, values)
        now = stated.get(name)
        if not isinstance(now, ast.Constant) or not isinstance(now.value, (bool, int, float, str)):
            raise Misread(f"{NAME} names {name!r}, and the module has no constant of that name at its top")
        at[name] = now.value
    plain = text.with_constants(source, {name: values[0] for name, values in choices.items()})
    return Space(choices, at, hashlib.sha256(plain.encode()).hexdigest()[:16], source)


def _choices(name: object, values: object) -> tuple[Value, ...]:
    if not isinstance(name, str) or not name.isidentifier():
        raise Misread(f"{NAME} has {str(name)[:40]!r}; names of constants are accepted")
    plain = isinstance(values, (list, tuple)) and values
    if not plain or not all(isinstance(v, (bool, int, float, str)) for v in values):  # type: ignore[attr-defined]
        raise Misread(f"{NAME}[{name!r}] is {str(values)[:60]!r}; a list of numbers, texts or booleans is accepted")
    found: tuple[Value, ...] = tuple(values)  # type: ignore[arg-type]
    if any(isinstance(v, (int, float)) and not isinstance(v, bool) and (v < 0 or not math.isfinite(v)) for v in found):
        raise Misread(f"{NAME}[{name!r}] has a number with a sign, or none at all; 0 and above are accepted")
    return tuple(dict.fromkeys(found)) if len({type(v) for v in found}) == 1 else found


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """What is assigned once to a name at the module's top."""
    found: dict[str, ast.expr] = {}
    twice: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and statement.value is not None:
                if target.id in found:
                    twice.add(target.id)
                found[target.id] = statement.value
    return {name: value for name, value in found.items() if name not in twice}
