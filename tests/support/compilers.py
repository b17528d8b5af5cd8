"""Compilers that do what a test says, in place of the machine's."""

from __future__ import annotations

import stat
from pathlib import Path


def compiler(folder: Path, body: str, name: str = "fake-g++") -> tuple[str, Path]:
    """A compiler that knows its version, counts what it is asked and does ``body``, a line of shell with ``$out``."""
    log = folder / f"{name}.log"
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *-dumpfullversion*) exec g++ "$@";; esac\necho "$*" >> {log}\n'
        f'for word in "$@"; do out=$word; done\n{body}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    log.touch()
    return str(path), log
