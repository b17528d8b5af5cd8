"""What a worker may take: memory, the budget, and silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kernelworks.machine.child_process import tree_bytes, tree_now
from kernelworks.machine.memory import available_bytes

__all__ = ["Silence", "WorkerLimit", "resident_bytes"]

MEMORY_SHARE = 0.9  # of what is free when the worker starts
QUIET_S = 5.0  # of silence, before its processes are looked at: each look costs some ms, beside what is timed
LOOK_S = 1.0  # between two looks
IDLE_SHARE = 0.05  # of a core: what polls for what never comes uses less, what works uses more though others have most


class Silence(NamedTuple):
    """Seconds for which a worker may say nothing: while its processes rest, and while they are at work.

    ``compiles``: at work is a compiler, which is not taken for one that hangs: what it exceeds is its part of the
    budget."""

    rests_s: float
    works_s: float
    compiles: bool = False


class WorkerLimit:
    """Seconds and memory that a worker may take; ``cause`` says which of them it has exceeded.

    What its processes do tells, not the clock alone. If all of them rest, it waits for what never comes. If they are at
    work, it is ended once they have had so many seconds of processor too: others may have the cores. A compiler of C++
    or CUDA among them has all the time there is.
    """

    def __init__(self, pid: int, may_wait: Callable[[], bool] = lambda: False) -> None:
        """``may_wait``: whether others of ours are at work beside, for which it may wait and do nothing."""
        self.cause, self.is_budget, self.is_part = "", False, False
        self.rested_s = 0.0  # for which all its processes have rested by now
        self._may_wait = may_wait
        self._pid, free_bytes = pid, available_bytes()
        self._most_bytes = MEMORY_SHARE * free_bytes
        self._least_bytes = free_bytes - self._most_bytes  # with more left, no tree of processes has grown so far
        self._silence: Silence | None = None  # none before the first trial
        self._most_s, self._else = 0.0, ""  # of one step that has a limit of its own
        self._hear()

    def begin(self, silence: Silence) -> None:
        """A trial begins, which may be silent for so long."""
        self._silence, self._most_s = silence, 0.0
        self._hear()

    def within(self, seconds: float, cause: str = "") -> None:
        """A step of it begins that may be at work for so long, whatever it says; 0 as it has ended. ``cause``: what is
        wrong if it takes longer; "" if only its part of the budget is over."""
        self._most_s, self._else = seconds, cause
        self._hear()

    def progress(self) -> None:
        """It has said something."""
        if not self._most_s:
            self._hear()

    def end(self) -> None:
        """The trial is over: what comes until the next may be at work as long as it likes."""
        if self._silence is not None:
            self.begin(Silence(self._silence.rests_s, float("inf")))

    def _hear(self) -> None:
        self._heard_at = self._looked_at = time.monotonic()
        self._cpu_at_first = self._cpu_seen = -1.0
        self._ran_at, self.rested_s = self._heard_at, 0.0

    def is_reached(self, ends_at: float) -> bool:
        """Whether one of the limits is. ``ends_at``: when the budget is over, on the monotonic clock."""
        now = time.monotonic()
        if now > ends_at:
            self.cause, self.is_budget = "the budget was over", True
        elif resident_bytes(self._pid) > self._most_bytes:
            self.cause = f"its process grew past {self._most_bytes / 1e9:.1f} GB of memory, and was ended"
        elif available_bytes() < self._least_bytes and tree_bytes(self._pid) > self._most_bytes:
            self.cause = f"its processes grew past {self._most_bytes / 1e9:.1f} GB of memory, and were ended"
        elif self._silence is not None and now - self._heard_at > QUIET_S and now - self._looked_at >= LOOK_S:
            self._look(now, self._silence)
        return bool(self.cause)

    def _look(self, now: float, silence: Silence) -> None:
        self._looked_at, tree = now, tree_now(self._pid)
        works = tree.compiles or tree.awake or self._may_wait()
        if self._cpu_seen < 0:
            self._cpu_at_first, self._cpu_seen, self._ran_at = tree.cpu_s, tree.cpu_s, now
        elif works or tree.cpu_s - self._cpu_seen > IDLE_SHARE * (now - self._ran_at):
            self._cpu_seen, self._ran_at = tree.cpu_s, now
        self.rested_s = now - self._ran_at
        silent_s, had_s = now - self._heard_at, tree.cpu_s - self._cpu_at_first
        if self.rested_s > silence.rests_s:
            self.cause = f"it hung: for {self.rested_s:.0f} s its processes did nothing, and it was ended"
        elif tree.compiles:
            return
        elif self._most_s and min(silent_s, had_s) > self._most_s:
            self.is_part = not self._else
            self.cause = (
                f"{self._else} for {silent_s:.0f} s, and its process was ended"
                if self._else
                else f"it was ended after {silent_s:.0f} s, its part of the budget"
            )
        elif min(silent_s, had_s) > silence.works_s:
            self.is_part = silence.compiles
            self.cause = (
                f"it was ended after {silent_s:.0f} s: it was still compiling, and that was its part of the budget"
                if self.is_part
                else f"it hung: nothing was heard of it for {silent_s:.0f} s, and its process was ended"
            )


def resident_bytes(pid: int) -> int:
    """What a process has in memory; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
