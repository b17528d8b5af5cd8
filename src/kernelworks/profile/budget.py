"""How long looking at a program may take, beside the program's own runs: what would take longer is left and said."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Budget", "BudgetExceeded", "rounded_up"]


class BudgetExceeded(Exception):
    """The budget is over; the text says before what, and which budget would do: so do ``needs_s``, 0 if unknown."""

    def __init__(self, text: str, needs_s: float = 0.0) -> None:
        super().__init__(text)
        self.needs_s = needs_s


@dataclass
class Budget:
    """``seconds`` for all that is done to a program. Its own runs come on top, all or the first ``free_runs``: whoever
    gives few seconds for a program that runs for minutes still wants it run. Each counts for ``wall`` seconds, what it
    takes by itself; what it took longer, being looked at, was for looking."""

    seconds: float
    wall: float
    free_runs: float = math.inf
    runs: int = 0
    kept: float = 0.0  # seconds that are there for something else
    begun: float = field(default_factory=lambda: time.perf_counter())

    def count_runs(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The program, each run of which is counted."""

        def whole() -> Any:
            self.runs += 1
            return run()

        return whole

    @contextlib.contextmanager
    def reserve(self, seconds: float) -> Iterator[None]:
        """What is done within has so many seconds less."""
        self.kept += seconds
        try:
            yield
        finally:
            self.kept -= seconds

    @property
    def seconds_left(self) -> float:
        """Seconds; below 0 if the budget is over."""
        return (
            self.seconds - self.kept + min(self.runs, self.free_runs) * self.wall - (time.perf_counter() - self.begun)
        )

    def ask(self, doing: str, needs: float = 0.0) -> None:
        """Raises Over if fewer than ``needs`` seconds are left to do it in."""
        left = self.seconds_left
        if left < needs or left < 0:
            more = self.seconds + max(needs - left, -left)
            enough = rounded_up((2 if left >= 0 else 4) * more)
            over = "its share of the budget" if left + self.kept >= 0 else "the budget"  # the rest is there for others
            raise BudgetExceeded(
                f"{doing} takes about {needs:.2g} s, more than is left of the budget of "
                f"{self.seconds:g} s: a budget of {enough} s would do"
                if left >= 0
                else f"{over} of {self.seconds:g} s was over before the end of {doing}: a budget of {enough} s may do",
                needs_s=enough,
            )


def rounded_up(seconds: float) -> int:
    """To a figure that a user would write."""
    for step in (1, 2, 5, 10, 20, 30, 60):
        if seconds <= step:
            return step
    return int(-(-seconds // 60) * 60)
