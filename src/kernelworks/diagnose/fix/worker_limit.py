"""What a worker may take: memory, the budget, and silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from kernelworks.machine.child_process import tree_now
from kernelworks.machine.memory import available_bytes

__all__ = ["WorkerLimit", "resident_bytes"]

MEMORY_SHARE = 0.9  # of what is free when the worker starts
REST_S = 5.0  # in which none of its processes ran: it waits for nobody


class WorkerLimit:
    """Seconds and memory that a worker may take; ``cause`` says which of them it has exceeded.

    One that has said nothing for its seconds hangs if its processes rest, or have had so many seconds of processor: not
    if a compiler is among them, and not if others have the cores.
    """

    def __init__(self, pid: int, is_building: Callable[[], bool] = lambda: False) -> None:
        """``is_building``: whether something is built beside that it may wait for, in silence."""
        self.cause, self.is_budget = "", False
        self._is_building = is_building
        self._pid, self._most_bytes = pid, MEMORY_SHARE * available_bytes()
        self._ends, self._seconds = float("inf"), 0.0
        self._cpu_at_first = self._cpu_seen = self._ran_at = 0.0

    def begin(self, seconds: float) -> None:
        """A trial begins, which may be silent for so long."""
        self._ends, self._seconds, self._cpu_seen = time.monotonic() + seconds, seconds, -1.0
        self._cpu_at_first = tree_now(self._pid).cpu_s

    def progress(self) -> None:
        """It has said something."""
        if self._ends < float("inf"):
            self.begin(self._seconds)

    def end(self) -> None:
        """The trial is over."""
        self._ends = float("inf")

    def is_reached(self, ends_at: float) -> bool:
        """Whether one of the limits is. ``ends_at``: when the budget is over, on the monotonic clock."""
        now, taken = time.monotonic(), resident_bytes(self._pid)
        if now > ends_at:
            self.cause, self.is_budget = "the budget was over", True
        elif now > self._ends and self._hangs(now):
            self.cause = f"it hung: nothing was heard of it for {self._seconds:.0f} s, and its process was ended"
        elif taken > self._most_bytes:
            self.cause = f"its process grew past {self._most_bytes / 1e9:.1f} GB of memory, and was ended"
        return bool(self.cause)

    def _hangs(self, now: float) -> bool:
        tree = tree_now(self._pid)
        compiles = tree.compiles or self._is_building()
        if compiles or tree.cpu_s != self._cpu_seen:
            self._cpu_seen, self._ran_at = tree.cpu_s, now
        had_its_time = tree.cpu_s - self._cpu_at_first > self._seconds
        return not compiles and (had_its_time or now - self._ran_at > REST_S)


def resident_bytes(pid: int) -> int:
    """What a process has in memory; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
