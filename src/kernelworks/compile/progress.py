"""What a compile says while it works: to whom it was asked for by, or to a terminal."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator

__all__ = ["heard_by", "say"]

_listener: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar("listener", default=None)


def say(line: str) -> None:
    """A line on what takes long. A fix takes a compiler that says nothing for a minute for one that hangs."""
    listener = _listener.get()
    if listener is not None:
        listener(line)
    elif sys.stderr.isatty():
        print(f"kernelworks: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Within, what this thread's compiles say goes to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
