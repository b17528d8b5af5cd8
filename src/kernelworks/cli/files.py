"""Files that verbs write beside what they print. Whether they can be written is asked before anything is measured."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import tempfile
from pathlib import Path
from typing import Any

from kernelworks.cli.console import FAILED, fail, warn
from kernelworks.machine.environment import write_whole

__all__ = ["apply_command", "fix_patch", "required_file", "why_no_patch", "writable", "writable_folder", "write"]


def writable(path: Path | None) -> Path | None:
    """The file if it can be written. If not: None, after a warning, so that what is printed is not lost."""
    why = None if path is None else _obstacle(path)
    if why:
        warn(f"cannot write {path} ({why}): this file will be missing")
    return None if why else path


def writable_folder(path: Path) -> Path | None:
    """The same for a folder of files."""
    why = _obstacle(path, folder=True)
    if why:
        warn(f"cannot write to {path} ({why}): no files will be written, only what is printed remains")
    return None if why else path


def required_file(path: Path | None) -> Path | None:
    """The file, of a verb that prints nothing else. Leaves if it cannot be written."""
    why = None if path is None else _obstacle(path)
    if why:
        fail(f"cannot write {path} ({why})", FAILED)
    return path


def write(path: Path | None, text: str) -> bool:
    """Whether the file was written; one that is None is not. A disk that has filled up meanwhile is a warning too."""
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, text)
    except OSError as error:
        warn(f"could not write {path}: {error.strerror or error}")
        return False
    return True


def _write_whole(path: Path, text: str) -> None:
    """Through a file beside it: a disk that is full leaves what was there, never a part of the new file. The file has
    the permissions that any new file gets, or those it had. A pipe, a stream such as /dev/stdout, and a file in a
    folder that takes no other file, are written where they are."""
    stream = path.parts[:2] in (("/", "dev"), ("/", "proc")) or (path.exists() and not path.is_file())
    path = path if stream else path.resolve()
    if stream or not os.access(path.parent, os.W_OK):
        path.write_text(text, encoding="utf-8")
        return
    mask = os.umask(0o022)  # it is told only by setting it
    os.umask(mask)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~mask
    write_whole(path, text, ".kernelworks-", mode=mode)


def fix_patch(record: Any) -> str:
    """What the fix of a record applied, as a diff of the program's source; "" if there is none."""
    fix = getattr(record, "fix", None)
    return fix.patch if fix is not None else ""


def apply_command(record: Any, patch: Path) -> str:
    """What is said of such a diff once it is written."""
    from kernelworks.report.next_steps import apply_words

    return f"the patch: {patch}, for `{shlex.join(apply_words(record.fix, str(patch)))}`"


def why_no_patch(record: Any) -> str:
    """Why a record has no such diff."""
    fix = getattr(record, "fix", None)
    if fix is None:
        return "no fix was measured"
    if not fix.plan:
        return "the fix applied nothing"
    return "what the fix applied has no place in a source file: it is in the plan"


def _obstacle(path: Path, *, folder: bool = False) -> str:
    """Why the file, or a file in the folder, cannot be written; "" if it can. Tried, not asked: permissions do not tell
    of a read-only file system. Leaves nothing behind."""
    place = path if folder else path.parent
    made = [each for each in (place, *place.parents) if not each.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        if folder:
            with tempfile.NamedTemporaryFile(dir=place):
                return ""
        if path.is_dir():
            return "it is a folder"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "permission denied"
        path.touch(exist_ok=False)
        path.unlink()
        return ""
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()
