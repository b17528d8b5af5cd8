"""How long a run is in full collections of garbage.

Each walks over every object of the process. A program that collects (transformers' Trainer does, each time that it
trains) takes longer beside the objects of others than by itself: a search's traces, graphs and compilers are as many as
the program's own.
"""

from __future__ import annotations

import gc
import time
from types import TracebackType
from typing import Any

__all__ = ["Collections"]

FULL = 2  # This generation holds all objects.


class Collections:
    """As a context: ``seconds`` are those of the full collections within it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun: float | None = None

    def _see(self, phase: str, told: dict[str, Any]) -> None:
        if told["generation"] != FULL:
            return
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
        elif self._begun is not None:
            self.seconds += now - self._begun
            self._begun = None

    def __enter__(self) -> Collections:
        gc.callbacks.append(self._see)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.callbacks.remove(self._see)
