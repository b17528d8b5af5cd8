"""The whole numbers that C++ sources of ours name, and rows that a room has compiled with others.

    [[constants]]
    row = "avx512"
    flags = ["-funroll-loops"]
    set = { "simd/lines.hpp" = { GRAIN = 65536 } }
    measured = [{ case = "1024x4096", ... }]

in a room's tuning.toml: its row of that name is made of copies of its sources that say these numbers, with these
further flags. Other rooms that include the same header have it as it lies. The entry enters the row's hash, but for
what was measured of it, so that a row with other numbers needs a proof and timings of its own. ``kernelworks search
--keep`` writes such entries.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.build.sources import with_includes
from kernelworks.machine import environment

__all__ = ["TABLE", "Constants", "constants_of", "named_in", "with_entry", "write_variant"]

TABLE = "tuning.toml"
KEY = "[[constants]]"
# A declaration of one whole number, written with digits, products, shifts and brackets alone.
DECLARATION = re.compile(r"constexpr (?:int|int64_t) ([A-Z][A-Z0-9_]*) = ([0-9 ()*<]+);")
EXCLUDED_NAMES = re.compile(
    r"LANES|MAX_.*"
)  # what a register holds, and what arrays are long enough for: no matter of speed
ENTRY = re.compile(r"^\[\[constants\]\]\n.*?(?=^\[|\Z)", re.M | re.S)


@dataclass(frozen=True)
class Constants:
    """Numbers by the label of their file (``simd/lines.hpp``, ``room/simd.cpp``) and their name; further flags."""

    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What enters a hash; "" where nothing is otherwise than the sources say."""
        said = {"flags": list(self.flags), "set": {file: dict(its) for file, its in self.numbers.items()}}
        return json.dumps(said, sort_keys=True) if self.numbers or self.flags else ""


@functools.cache
def constants_of(source: Path, op_kernel: str) -> Constants:
    """What the room of a source has a row compiled with. Raises ValueError where its table does not read."""
    path = source.parent / TABLE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Constants()
    if KEY not in text:
        return Constants()
    try:
        entries: list[dict[str, Any]] = tomllib.loads(text)["constants"]
        found = next((one for one in entries if one["op_kernel"] == op_kernel), {})
        return Constants(
            {str(file): {str(n): int(v) for n, v in its.items()} for file, its in found.get("set", {}).items()},
            tuple(map(str, found.get("flags", ()))),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: its [[constants]] do not read ({error!r})") from error


# ---------------------------------------------------------------- sources


def named_in(source: Path, shared: Path) -> dict[str, dict[str, int]]:
    """File -> the numbers that it names, of a C++ source and all of ours that it includes. A name that a file gives
    twice says nothing."""
    found: dict[str, dict[str, int]] = {}
    for path in with_includes(source, shared):
        declared = [
            m for m in DECLARATION.findall(path.read_text(encoding="utf-8")) if not EXCLUDED_NAMES.fullmatch(m[0])
        ]
        names = [name for name, _ in declared]
        numbers = {name: _number(said) for name, said in declared if names.count(name) == 1}
        numbers = {name: number for name, number in numbers.items() if number > 1}
        if numbers:
            found[_label(path, shared)] = numbers
    return found


def _label(path: Path, shared: Path) -> str:
    """A file's name, said apart where a room has one of the same name as what all share."""
    return f"{'simd' if path.parent == shared else 'room'}/{path.name}"


def _number(said: str) -> int:
    """Of products and shifts of digits, as C++ and Python both write them."""
    return int(eval(compile(ast.parse(said.strip(), mode="eval"), "constant", "eval"), {"__builtins__": {}}))


def write_variant(source: Path, numbers: Mapping[str, Mapping[str, int]], shared: Path, folder: Path) -> Path:
    """A copy of a source and what it includes, with those numbers; its path. What all share lies in ``simd`` beside it.

    Raises ValueError where a file does not name such a number.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in with_includes(source, shared)}
    labels = {_label(path, shared): path for path in texts}
    for file, its in numbers.items():
        if file not in labels:
            raise ValueError(f"constants names {file!r}; {source.name} is made of {', '.join(labels)}")
        for name, number in its.items():
            texts[labels[file]] = _with(texts[labels[file]], file, name, number)
    for path, text in texts.items():
        place = folder / "simd" if path.parent == shared else folder
        environment.write_whole(place / path.name, text, ".variant-")
    return folder / source.name


def _with(text: str, file: str, name: str, number: int) -> str:
    pattern = re.compile(rf"(constexpr (?:int|int64_t) {re.escape(name)} = )[0-9 ()*<]+;")
    changed, count = pattern.subn(lambda match: f"{match[1]}{number};", text)
    if count != 1:
        raise ValueError(f"constants names {name!r} of {file}, which says it {count} times; once is accepted")
    return changed


# ---------------------------------------------------------------- the table


def with_entry(table: str, op_kernel: str, constants: Constants, measured: Sequence[Mapping[str, Any]]) -> str:
    """A room's table with what a row is compiled with from now on, in place of what it had; nothing else changes."""
    kept = ENTRY.sub(
        lambda found: "" if tomllib.loads(found[0])["constants"][0]["op_kernel"] == op_kernel else found[0], table
    )
    kept = kept.rstrip("\n")
    return f"{kept}\n\n{_entry(op_kernel, constants, measured)}" if kept else _entry(op_kernel, constants, measured)


def _entry(op_kernel: str, constants: Constants, measured: Sequence[Mapping[str, Any]]) -> str:
    lines = [KEY, f"op_kernel = {json.dumps(op_kernel)}"]
    if constants.flags:
        lines.append(f"flags = {_value(list(constants.flags))}")
    if constants.numbers:
        lines.append(f"set = {_value(constants.numbers)}")
    lines += ["measured = [", *(f"    {_value(one)}," for one in measured), "]", ""]
    return "\n".join(lines)


def _value(value: Any) -> str:
    """Strings, numbers, lists, and tables of these; in JSON and TOML all but tables are the same."""
    if isinstance(value, Mapping):
        said = (f"{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name)} = {_value(v)}"
                for name, v in value.items())  # fmt: skip
        return f"{{ {', '.join(said)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)
