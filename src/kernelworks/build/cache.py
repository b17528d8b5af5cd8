"""Compiled files on disk: whole entries or none, and none trusted unhashed.

An entry is two files, ``STEM.so`` (or ``.cubin``) and ``STEM.json``. The second holds the SHA-256 of the first and is
written last, each through a rename, so a killed process, a full disk or ten processes starting at once leave either
a whole entry or none. An entry whose bytes do not match its hash is built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kernelworks import environment

__all__ = ["BuildError", "entry"]


class BuildError(RuntimeError):
    """A library could not be built or read. The text says what was run and what came back."""


def _intact(made: Path, note: Path) -> bool:
    try:
        recorded = json.loads(note.read_text(encoding="utf-8"))["sha256"]
        return bool(recorded == hashlib.sha256(made.read_bytes()).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released by the system when a holder dies
        yield


def entry(stem: str, suffix: str, make: Callable[[Path], None], record: Mapping[str, str]) -> Path:
    """The path of one cached file, made by ``make(path)`` if the cache has no intact entry for it.

    ``stem`` names the entry and holds the hash of all that it is made from; ``record`` is kept beside it for readers.
    Raises BuildError: ``make`` failed, or the cache folder cannot be written.
    """
    folder = environment.cache_dir("build")
    made, note = folder / f"{stem}{suffix}", folder / f"{stem}.json"
    if _intact(made, note):
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{stem}.lock"):
            if _intact(made, note):  # another process built it while we waited
                return made
            with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
                fresh, fresh_note = Path(scratch) / made.name, Path(scratch) / note.name
                make(fresh)
                sha256 = hashlib.sha256(fresh.read_bytes()).hexdigest()
                fresh_note.write_text(json.dumps({"sha256": sha256, **record}), encoding="utf-8")
                note.unlink(missing_ok=True)
                os.replace(fresh, made)
                os.replace(fresh_note, note)
    except OSError as error:
        raise BuildError(f"the build cache {folder} cannot be used: {error}") from error
    return made
