"""Waiting for a descriptor of any number: ``select.select`` takes none from 1024 on, and programs hold thousands."""

from __future__ import annotations

import math
import select
from typing import Protocol

__all__ = ["is_readable"]


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def is_readable(source: int | HasDescriptor, seconds: float | None = 0.0) -> bool:
    """Whether there is something to read, or the other end is closed, after ``seconds`` at the most (None: for ever).
    Raises ValueError if the descriptor itself is closed."""
    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    found = waiting.poll(None if seconds is None else math.ceil(1e3 * max(0.0, seconds)))
    if any(event & select.POLLNVAL for _, event in found):
        raise ValueError(f"the descriptor {source} is closed")
    return bool(found)
