"""The files of records that a user is handed, and how they are read again: on another machine, by another version.

A document names its kind and its version: ``"schema": "Diagnosis/1"``. A version is raised if a field is gone or means
something else, not if one is added: of the same version, what this reader does not know is passed over, and what an
older writer did not know has its default. A newer version is refused. A document without a schema is read as what its
fields say that it is. It may come from a stranger: figures must be finite, and no text moves the cursor of a terminal.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelworks.records.base import Record
from kernelworks.records.json_text import build_record, parse_json, read_regular

__all__ = ["NoRecord", "read_record"]

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class NoRecord(ValueError):
    """A file holds no record that this version reads; the text says why."""


def read_record(path: Path) -> Record | list[Record]:
    """The record of a file, or the records of one kind that it lists. Raises NoRecord, and OSError if the file cannot
    be read."""
    try:
        value = parse_json(read_regular(path).decode())
    except ValueError:
        raise NoRecord(f"{path} is no record: it is no JSON") from None
    if isinstance(value, dict) and isinstance(value.get("results"), list):
        value = value["results"]  # of ``bench --save``
    if not isinstance(value, list):
        return _record(path, value)
    if not value:
        raise NoRecord(f"{path} is no record: it holds an empty list")
    found = [_record(path, item) for item in value]
    if len({type(one) for one in found}) > 1:
        raise NoRecord(f"{path} holds records of several kinds")
    return found


def _record(path: Path, value: Any) -> Record:
    if not isinstance(value, dict):
        raise NoRecord(f"{path} is no record of kernelworks")
    kind, version = _schema(path, value)
    if version > kind.VERSION:
        raise NoRecord(
            f"{path} was written by a newer kernelworks ({kind.__name__}, version {version}; this one reads up to "
            f"{kind.VERSION}): upgrade kernelworks to read it"
        )
    try:
        record = build_record(kind, _clean(value), lenient=True)
    except ValueError as error:
        raise NoRecord(f"{path} is no {kind.__name__} that can be read: {error}") from None
    assert isinstance(record, Record)
    return record


def _schema(path: Path, value: Mapping[str, Any]) -> tuple[type[Record], int]:
    """The kind and the version that a document names; without them, the kind whose fields it has."""
    kinds = _kinds()
    named = value.get("schema")
    if named is None:
        fitting = [kind for kind in kinds.values() if _required(kind) <= value.keys()]
        if not fitting:
            raise NoRecord(f"{path} is no record of kernelworks: it has the fields of none")
        return max(fitting, key=lambda kind: len(_required(kind))), 0
    name, _, version = str(named).partition("/")
    if name not in kinds or not version.isdecimal() or len(version) > 9:
        raise NoRecord(f"{path} is no record that this kernelworks knows: its schema is {str(named)[:40]!r}")
    return kinds[name], int(version)


def _required(kind: Any) -> set[str]:
    missing = dataclasses.MISSING
    return {f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing}


@functools.cache
def _kinds() -> dict[str, type[Record]]:
    """Every kind of record that a verb hands out, by its name."""
    from kernelworks import records
    from kernelworks.records.climb import Climb
    from kernelworks.records.compare import Comparison
    from kernelworks.records.descent import Descent
    from kernelworks.records.experiment import Experiment
    from kernelworks.records.fix import Fix
    from kernelworks.records.judgement import Judgement
    from kernelworks.records.model_map import ModelMap
    from kernelworks.records.predictions import PredictionAccuracy
    from kernelworks.records.problem_check import ProblemCheck
    from kernelworks.records.search import Search
    from kernelworks.records.trace import TraceDiagnosis

    found: list[Any] = [value for value in vars(records).values() if isinstance(value, type)]
    found += [Climb, Comparison, Descent, Experiment, Fix, Judgement, PredictionAccuracy, ProblemCheck, Search]
    found += [ModelMap, TraceDiagnosis]
    return {kind.__name__: kind for kind in found if issubclass(kind, Record) and kind is not Record}


def _clean(value: Any) -> Any:
    """The plain values of a document that may come from anybody. Raises ValueError for a figure that is not finite."""
    if isinstance(value, dict):
        return {_text(name): _clean(item) for name, item in value.items() if name != "schema"}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a figure is not finite")
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    return CONTROLS.sub(" ", text)
