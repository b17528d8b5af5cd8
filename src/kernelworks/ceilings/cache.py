"""Ceilings that were measured before, kept per machine. An entry that is not exactly what was written is not used."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from pathlib import Path

from kernelworks import environment
from kernelworks.ceilings.survey import Progress, fingerprint, measure
from kernelworks.records import Ceilings, from_json, to_json

__all__ = ["cached", "ceilings", "forget", "save"]


def _path() -> Path:
    return environment.cache_dir("ceilings") / f"{fingerprint()}.json"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


_found: dict[Path, Ceilings] = {}


def cached() -> Ceilings | None:
    """The ceilings measured before on this machine, or None. Measures nothing and never raises for a bad entry."""
    path = _path()
    if path not in _found:
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            body = json.dumps(note["ceilings"], sort_keys=True)
            if note["sha256"] != _digest(body):
                return None
            record = from_json(Ceilings, body)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if record.fingerprint != fingerprint():
            return None
        _found[path] = record
    return _found[path]


def save(record: Ceilings) -> Path:
    """Write one entry through a rename, so that a reader sees a whole one or none. Raises OSError."""
    path = _path()
    plain = json.loads(to_json(record))
    note = {"sha256": _digest(json.dumps(plain, sort_keys=True)), "ceilings": plain}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(note, stream, indent=1)
        os.replace(fresh, path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise
    _found.pop(path, None)
    return path


def forget() -> None:
    """Drop what this process has read; the next ``cached`` reads the file again."""
    _found.clear()


def ceilings(progress: Progress | None = None, *, again: bool = False) -> Ceilings:
    """This machine's ceilings: from the cache, else measured (20 to 50 s) and cached. ``again`` measures in any case.

    Raises Ambiguous when the machine is too busy to measure, BuildError without a compiler. Where the cache folder
    cannot be written the result is still returned, with a warning.
    """
    record = None if again else cached()
    if record is None:
        record = measure(progress)
        try:
            save(record)
        except OSError as error:
            warnings.warn(f"ceilings were measured but could not be cached: {error}", stacklevel=2)
        _found[_path()] = record
    return record
