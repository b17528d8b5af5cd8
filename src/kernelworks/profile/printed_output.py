"""What a program that is run again and again prints: its first run's is shown, that of the later ones is dropped.

From its import on the program finds streams of ours as ``sys.stdout`` and ``sys.stderr``. What it makes on them (a
handler of logging, a text wrapper with another encoding) is made once and used by each run, so a stream is silent by
run, not by place. What is written to the descriptors themselves, by C code or by a process that the program starts, is
shown each time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["dropped_output", "shown_output"]

_dropping: list[None] = []  # as long as it is not empty, what is printed is dropped


@contextlib.contextmanager
def shown_output() -> Iterator[None]:
    """Within, the program prints to these streams. What it puts in their place is taken out again."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (None if stream is None else _PrintedStream(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def dropped_output() -> Iterator[None]:
    """As ``shown_output``, and nothing of it is seen, nor of what is printed to streams that were made before."""
    _dropping.append(None)
    try:
        with shown_output():
            yield
    finally:
        _dropping.pop()


class _PrintedStream:
    """A stream of text or of bytes; all but writing is done by the stream behind it, which the program cannot close or
    take apart."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, what: Any) -> int:
        if _dropping:
            return len(what) if isinstance(what, str) else memoryview(what).nbytes
        written: int = self._stream.write(what)
        return written

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _PrintedStream:
        return _PrintedStream(self._stream.buffer)

    def detach(self) -> _PrintedStream:
        self._stream.flush()
        return self.buffer

    def close(self) -> None:
        self._stream.flush()
