"""The standard input of a program that is run again and again: each run reads what the first one read.

What a run reads of it is kept in a file without a name, and given to the next run from its beginning; where that ends,
more is read from the real one. What reads the descriptor itself (``os.read(0)``, a child process) is not served.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO

__all__ = ["kept_input", "replayed_input"]

STDIN = 0  # the descriptor
CHUNK = 1 << 16

_kept: list[int] = []  # the descriptor of the file that holds what was read


def kept_input(descriptor: int | None = None) -> int:
    """The descriptor of the file in which what is read is kept: one of another process's if it is given."""
    if descriptor is not None:
        _kept[:] = [descriptor]
    elif not _kept:
        with tempfile.TemporaryFile() as file:
            _kept.append(os.dup(file.fileno()))
    return _kept[0]


class _ReplayedInput(io.RawIOBase):
    """Bytes of the file from its beginning, then of the real input, which are added to the file."""

    def __init__(self) -> None:
        self._place = 0

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDIN

    def isatty(self) -> bool:
        return os.isatty(STDIN)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        found = os.pread(kept_input(), len(buffer), self._place)
        if not found:
            found = os.read(STDIN, min(len(buffer), CHUNK))
            written = 0
            while written < len(found):
                written += os.pwrite(kept_input(), found[written:], self._place + written)
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)


@contextlib.contextmanager
def replayed_input() -> Iterator[None]:
    """Inside, ``sys.stdin`` begins at its beginning. Whoever has put something else in its place keeps that."""
    before = sys.stdin
    if not _is_real(before):
        yield
        return
    made = io.TextIOWrapper(io.BufferedReader(_ReplayedInput(), CHUNK), encoding=before.encoding, errors=before.errors)
    sys.stdin = made
    try:
        yield
    finally:
        if sys.stdin is made:
            sys.stdin = before


def _is_real(stream: TextIO | None) -> bool:
    """Whether it reads the process's standard input, and nobody has begun to."""
    try:
        return stream is not None and stream.fileno() == STDIN and isinstance(stream, io.TextIOWrapper)
    except (OSError, ValueError, AttributeError):
        return False
