"""Rows of ours in C++ as candidates: the row as it is, in a text that says what of it may be otherwise.

What may be otherwise are the whole numbers that its sources name (``constexpr int64_t GRAIN = 32 << 10``: how much is
worth a thread, how many vectors are in flight, from how many bytes on the caches are passed by), the compiler's flags,
and the instruction set. A candidate is a file of the judge's format for rooms, with those numbers as its constants and
its ``SPACE``; what compiles it (``row``) runs in the candidate's own process.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelworks import environment
from kernelworks.build import cpp
from kernelworks.build.sources import with_includes
from kernelworks.contract import Row
from kernelworks.machine import machine
from kernelworks.op import OPS, Op

__all__ = ["named_in", "row", "text_of"]

# A declaration of one whole number, written with digits, products, shifts and brackets alone.
DECLARED = re.compile(r"constexpr (?:int|int64_t) ([A-Z][A-Z0-9_]*) = ([0-9 ()*<]+);")
LEFT = re.compile(r"LANES|MAX_.*")  # what a register holds, and what arrays are long enough for: no matter of speed
LARGE = 1 << 20  # bytes from which on something is done another way: tried far off too
FLAGS = ("", "-O2", "-funroll-loops", "-fno-tree-slp-vectorize")

TEXT = '''"""{op}: our row in C++, compiled with the constants below."""

from kernelworks.search.variants import row

TARGET = {target!r}
FLAGS = ""
{constants}
SPACE = {{
{space}
}}

_run = row({op!r}, TARGET, FLAGS, {{
{given}
}})


def {op}(*arguments):
    return _run(*arguments)
'''


def named_in(source: Path) -> dict[str, dict[str, int]]:
    """File -> the numbers that it names, of a C++ source and all of ours that it includes. A name that a file gives
    twice says nothing."""
    found: dict[str, dict[str, int]] = {}
    for path in with_includes(source, cpp.SIMD):
        declared = [m for m in DECLARED.findall(path.read_text(encoding="utf-8")) if not LEFT.fullmatch(m[0])]
        names = [name for name, _ in declared]
        numbers = {name: _number(said) for name, said in declared if names.count(name) == 1}
        numbers = {name: number for name, number in numbers.items() if number > 1}
        if numbers:
            found[_label(path)] = numbers
    return found


def _label(path: Path) -> str:
    """A file's name, said apart where a room has one of the same name as what all share."""
    return f"{'simd' if path.parent == cpp.SIMD else 'room'}/{path.name}"


def _number(said: str) -> int:
    """Of products and shifts of digits, as C++ and Python both write them."""
    return int(eval(compile(ast.parse(said.strip(), mode="eval"), "constant", "eval"), {"__builtins__": {}}))


def _choices(number: int) -> list[int]:
    """Halves and doubles of a number."""
    factors = (1 / 8, 1 / 2, 1, 2, 8, 1024) if number >= LARGE else (1 / 4, 1 / 2, 1, 2, 4)
    return sorted({max(1, int(number * factor)) for factor in factors})


def _rows(op: Op) -> list[Row]:
    """Those in C++ that this CPU can run, best first, of one source."""
    here = [
        r for r in op.rows
        if r.source is not None and r.source.suffix == ".cpp" and cpp.TARGETS[r.target].needs <= machine().features
    ]  # fmt: skip
    return [r for r in here if r.source == here[0].source]


def text_of(name: str) -> str | None:
    """The candidate of an op's best row in C++ as it is, with its space; None where it has no such row here."""
    rows = _rows(OPS[name])
    if not rows or rows[0].source is None:
        return None
    numbers = named_in(rows[0].source)
    constants = {_constant(file, of): value for file, its in numbers.items() for of, value in its.items()}
    space: dict[str, list[Any]] = {"TARGET": [r.name for r in rows], "FLAGS": [*FLAGS]}
    space |= {constant: _choices(value) for constant, value in constants.items()}
    given = "\n".join(
        f"    {file!r}: {{{', '.join(f'{of!r}: {_constant(file, of)}' for of in its)}}},"
        for file, its in numbers.items()
    )
    return TEXT.format(
        op=name, target=rows[0].name, constants="\n".join(f"{c} = {v}" for c, v in constants.items()), given=given,
        space="\n".join(f"    {c!r}: {v!r}," for c, v in space.items() if len(v) > 1),
    )  # fmt: skip


def _constant(file: str, name: str) -> str:
    """What a file's number is called in a candidate's text."""
    stem = Path(file).stem if file.startswith("simd/") else f"own_{Path(file).stem}"
    return re.sub(r"\W", "_", f"{stem}_{name}").upper()


# ---------------------------------------------------------------- in the candidate's process


def row(op: str, target: str, flags: str, constants: Mapping[str, Mapping[str, int]]) -> Callable[..., Any]:
    """The forward of an op's row, compiled with other numbers and further flags, in this process's cache.

    Raises ValueError where a file does not name such a number, BuildError.
    """
    found = OPS[op].row(target)
    assert found.source is not None
    changed = _written(found.source, constants)
    cpp.stand_in(found.source, target, cpp.variant(changed, target, tuple(flags.split()), changed.parent / "simd"))
    return found.load("forward")


def _written(source: Path, constants: Mapping[str, Mapping[str, int]]) -> Path:
    """A copy of the source and what it includes, with those numbers; its path."""
    texts = {path: path.read_text(encoding="utf-8") for path in with_includes(source, cpp.SIMD)}
    labels = {_label(path): path for path in texts}
    for file, numbers in constants.items():
        if file not in labels:
            raise ValueError(f"constants names {file!r}; {source.name} is made of {', '.join(labels)}")
        for name, number in numbers.items():
            texts[labels[file]] = _with(texts[labels[file]], file, name, number)
    whole = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:16]
    folder = environment.cache_dir("build") / f"variant-{whole}"
    for path, text in texts.items():
        place = folder / "simd" if path.parent == cpp.SIMD else folder
        environment.write_whole(place / path.name, text, ".variant-")
    return folder / source.name


def _with(text: str, file: str, name: str, number: int) -> str:
    pattern = re.compile(rf"(constexpr (?:int|int64_t) {re.escape(name)} = )[0-9 ()*<]+;")
    changed, count = pattern.subn(functools.partial(_numbered, number), text)
    if count != 1:
        raise ValueError(f"constants names {name!r} of {file}, which says it {count} times; once is accepted")
    return changed


def _numbered(number: int, match: re.Match[str]) -> str:
    return f"{match[1]}{number};"
