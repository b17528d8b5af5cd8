"""A trial, guarded: what goes wrong in it is the reason why its candidate is rejected or not tried, and what it leaves
behind in the process is put back.

What cannot be put back spoils the process: a device that answers no more, a change that could not be undone. There the
search ends, and another process goes on from the plan so far.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.journal import device_fault
from kernelworks.diagnose.fix.outcome import in_a_line
from kernelworks.diagnose.fix.result import MORE
from kernelworks.diagnose.fix.time_limits import time_is_left
from kernelworks.diagnose.optimization import Impossible, NotUndone, Rejected
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.profile.process_state import read_settings, restore_settings

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["RUNS", "LeftBehind", "guard_trial"]

DEVICE_S, DEVICE_RUNS = 20.0, 3  # seconds, and runs of the program, after which a device answers
STREAMS = {0: "the program's input", 1: "the program's output", 2: "the program's errors"}
RUNS = 3  # of the program, that show what it sets itself: it may do so now and then
COMPILERS_OWN = frozenset({"the limit of recursion"})  # what a compiler sets for all of the process


class LeftBehind:
    """The settings and standard streams of the process as they are before a trial; what it has left otherwise is put
    back."""

    def __init__(self, run: Callable[[], Any]) -> None:
        """``run`` is the program: what it sets itself, no trial has left."""
        self._run = run
        self._streams = {number: (os.dup(number), at) for number in STREAMS if (at := _file_of(number)) is not None}
        self._settings = read_settings()

    def begin(self) -> None:
        self._settings = read_settings()

    def put_back(self, *, runs: bool) -> str:
        """What a trial has left behind, in words; "" if nothing. If it ``runs``, the program is run to see what it sets
        itself."""
        streams = [number for number, (_, at) in self._streams.items() if _file_of(number) != at]
        for number in streams:
            os.dup2(self._streams[number][0], number)
        settings = [name for name in restore_settings(self._settings) if name not in COMPILERS_OWN]
        for _ in range(RUNS if runs else 0):
            if not settings:
                break
            with contextlib.suppress(Exception):  # what it raises, its own trial tells
                self._run()
            own = restore_settings(self._settings)
            settings = [name for name in settings if name not in own]
        found = [*(STREAMS[number] for number in streams), *settings]
        return f"it leaves {', '.join(found)} as it should not" if found else ""

    def close(self) -> None:
        for copy, _ in self._streams.values():
            with contextlib.suppress(OSError):
                os.close(copy)
        self._streams = {}


def _file_of(number: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; None if it is closed."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def guard_trial(search: Search, one: Try, act: Callable[[], None]) -> None:
    assert search.scene.budget is not None and search.left_behind is not None
    kept = list(search.kept)
    search.journal.note_trial(search, one)
    search.left_behind.begin()
    NotUndone.causes.clear()
    _attempt(search, one, act)
    spoilt = f"{search.doing}: it cannot be undone: {NotUndone.causes[0]}" if NotUndone.causes else ""
    left = search.left_behind.put_back(runs=time_is_left(search.scene, RUNS))
    if left and not one.applied:
        one.why, one.rejected = f"{one.why}; {left}" if one.why else left, True
    answers_s = DEVICE_S + DEVICE_RUNS * search.scene.wall
    with search.within(answers_s, "the device did not answer"), untimed_section():
        fault = device_fault()
    if fault:
        spoilt = f"the device was lost: {fault}"
    if spoilt:
        one.why, one.rejected, one.applied = spoilt, True, False
        search.kept = [other for other in kept if other is not one]
    search.journal.note_outcome(search)
    if spoilt:
        search.journal.give_up("the device was lost" if fault else spoilt)


def _attempt(search: Search, one: Try, act: Callable[[], None]) -> None:
    one.needs_s = 0.0
    try:
        act()
    except BudgetExceeded as over:
        one.why = f"the budget was too small: {over}"
        one.needs_s = over.needs_s or MORE * search.budget_s
        search.over.append(one)
    except Impossible as why:
        one.why, one.promise = str(why), why.instead or one.promise
        one.rejected = one.rejected or isinstance(why, Rejected)
    except Exception as error:
        one.why, one.rejected = f"{search.doing}: {in_a_line(error)}", True
    except (KeyboardInterrupt, SystemExit) as error:
        if not search.journal.isolated:  # the user's own key, or the program's exit
            raise
        one.why, one.rejected = f"{search.doing}: it raised {type(error).__name__}", True
