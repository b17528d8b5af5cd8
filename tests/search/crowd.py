"""Workers in threads, in the place of Ray's: each has a sitting of its own, and can be lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kernelworks.records.judgement import Judgement
from kernelworks.search.workers.farm import OpenedSitting, Task

__all__ = ["Crowd", "Hand", "Lost"]


class Lost(Exception):
    """In the place of what Ray raises where a process is gone."""


class Hand:
    """One worker: what it is given is judged in a thread of its own."""

    def __init__(self, number: int, open: Callable[[], OpenedSitting], find: Callable[[Task], Judgement]) -> None:
        self.name, self.find, self.ended = f"hand {number}", find, False
        self.judged: list[str] = []
        self._pool = ThreadPoolExecutor(1)
        self.opened: Future[OpenedSitting] = self._pool.submit(open)

    def judge(self, task: Task) -> Future[tuple[Judgement, float]]:
        assert not self.ended and self.opened.done() and self.opened.exception() is None
        return self._pool.submit(self._judged, task)

    def _judged(self, task: Task) -> tuple[Judgement, float]:
        found = self.find(task)
        self.judged.append(task.id)
        return found, 0.5

    def end(self) -> None:
        self.ended = True
        self._pool.shutdown(wait=False)


class Crowd(contextlib.AbstractContextManager["Crowd"]):
    """In the place of ``crew.Crew``. ``most`` is how many were at work at once; ``loses`` says of a task that is begun
    whether its worker is lost over it."""

    def __init__(self, workers: int, opened: OpenedSitting, find: Callable[[Task], Judgement]) -> None:
        self.workers, self.opened, self.find = workers, opened, find
        self.hands: list[Hand] = []
        self.loses: Callable[[Task], bool] = lambda task: False
        self.at_work, self.most = 0, 0
        self._lock = threading.Lock()

    def allowed(self) -> int:
        return self.workers

    def hire(self) -> Hand:
        self.hands.append(Hand(len(self.hands), lambda: self.opened, self._find))
        return self.hands[-1]

    def _find(self, task: Task) -> Judgement:
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        try:
            if self.loses(task):
                raise Lost(f"the worker of {task.said} was killed")
            return self.find(task)
        finally:
            with self._lock:
                self.at_work -= 1

    def __exit__(self, *_: Any) -> None:
        assert all(hand.ended for hand in self.hands)
