"""KernelBook: rows of JSON with ``python_code`` (a module, ``get_inputs`` and ``get_init_inputs``), ``entry_point``
(the module's name) and ``triton_code`` (its answer, whose class is ENTRYNew). ``rows.jsonl#3`` is the fourth row of
a file, ``rows.jsonl#uuid`` the one of that ``uuid`` or ``entry_point``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelworks.judge.formats import kernelbench, text
from kernelworks.judge.problem import Candidate, Misread, Problem
from kernelworks.records.json_text import parse_json

__all__ = ["candidate_in", "load", "load_candidate", "problem_in", "reads"]

NAME = "kernelbook"
REQUIRED_FIELDS = ("python_code", "entry_point")


def reads(path: Path, source: str) -> bool:
    return path.suffix in (".json", ".jsonl") and '"python_code"' in source


def row_in(path: Path, source: str, which: str = "") -> dict[str, Any]:
    """The row of a file. Raises Misread if it has none of that number or name."""
    rows: list[Any] = []
    try:
        said = parse_json(source)
        rows = said if isinstance(said, list) else [said]
    except ValueError:
        for number, line in enumerate(source.splitlines(), 1):
            try:
                rows += [parse_json(line)] if line.strip() else []
            except ValueError as error:
                raise Misread(f"{path}:{number}: not valid JSON: {getattr(error, 'msg', error)}") from None
    if which.isdigit() and int(which) < len(rows):
        found = rows[int(which)]
    else:
        named = [r for r in rows if isinstance(r, dict) and which in ("", str(r.get("uuid")), r.get("entry_point"))]
        if not named:
            raise Misread(f"{path}: no row {which!r}; it has {len(rows)}, by number from 0, uuid or entry_point")
        found = named[0]
    if not isinstance(found, dict):
        raise Misread(f"{path}: a row is {type(found).__name__}; an object is accepted")
    for field in REQUIRED_FIELDS:
        value = found.get(field)
        if not isinstance(value, str) or not value:
            raise Misread(f"{path}: {field} is {value!r}; a text is accepted")
    return found


def problem_in(path: Path, source: str, which: str = "") -> Problem:
    row = row_in(path, source, which)
    entry = row["entry_point"]
    named = path.with_name(f"{entry}.py")
    return kernelbench.problem_in(named, row["python_code"], entry=entry, format=NAME)


def candidate_in(path: Path, source: str, problem: Problem, which: str = "") -> Candidate:
    """Of a row its ``triton_code``; of a Python file its class ENTRYNew, or ModelNew."""
    if reads(path, source):
        row = row_in(path, source, which or problem.entry)
        code = row.get("triton_code")
        if not isinstance(code, str) or not code:
            raise Misread(f"{path}: triton_code is {code!r}; a text is accepted")
        path, source = path.with_name(f"{problem.entry}New.py"), code
    entry = f"{problem.entry}New"
    has = text.classes(text.parse_module(source, str(path)))
    return kernelbench.candidate_in(path, source, entry=entry if entry in has else kernelbench.ANSWER)


load, load_candidate = kernelbench.load, kernelbench.load_candidate
