"""When a search ends: its time, its count, or a key."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from kernelworks.judge.harness import Budget

__all__ = ["Stopping", "shorten_budget"]


class Stopping:
    """``with Stopping(...) as stop``: while it lasts, the first interrupt (SIGINT) asks for an end after what is being
    judged, the second one raises KeyboardInterrupt. Threads other than the main one are sent no signals."""

    def __init__(self, budget_s: float, most: int | None, say: Callable[[str], None]) -> None:
        self.begun, self.budget_s, self.most, self.say = time.monotonic(), budget_s, most, say
        self.interrupted = False
        self._before: Any = None

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.say("ends after this candidate; once more: at once")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def stop_reason(self, judged: int, kept_back_s: float) -> str:
        """Why no further candidate is judged, "" where one may be."""
        if self.interrupted:
            return "interrupted"
        if self.most is not None and judged >= self.most:
            return "count"
        return "budget" if self.seconds > self.budget_s - kept_back_s else ""


def shorten_budget(budget: Budget, spare_s: float) -> Budget:
    """The last judgement's budget where the search's own has no more than ``spare_s`` left beside it: less time for
    drawing cases and for further turns, down to nothing."""
    less = 1.0 if spare_s >= 0 else max(0.0, 1 + spare_s / (budget.reference_s + budget.turns_s + budget.many_s))
    return dataclasses.replace(
        budget, reference_s=less * budget.reference_s, turns_s=less * budget.turns_s, many_s=less * budget.many_s
    )
