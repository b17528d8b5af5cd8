"""Work of ours that other processes do beside what a process measures: it is halted whenever something is timed.

Whoever has such work (a fix whose compilers work in processes of their own) installs how to halt it and how to let it
go on. From then on it stands, but while ``untimed_section`` is entered; ``timed_section`` within that halts it again.
Where nothing is installed both do nothing. A backward pass may be timed in a thread of autograd's own, so this is of
the process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelworks.build.cache import around_builds

__all__ = ["WorkBeside", "installed_work", "timed_section", "untimed_section"]


@dataclass(frozen=True)
class WorkBeside:
    """``halt`` returns once the work stands, ``go_on`` at once. Both are cheap if there is none."""

    halt: Callable[[], None]
    go_on: Callable[[], None]


_state = threading.RLock()
_work: list[WorkBeside] = []
_levels: list[bool] = [True]  # whether what is done now is timed, by nesting


@contextlib.contextmanager
def installed_work(work: WorkBeside) -> Iterator[None]:
    """Within, this work stands unless something is ``untimed_section``, or is built: that work may be building it."""
    _work.append(work)
    try:
        with around_builds(untimed_section):
            yield
    finally:
        _work.remove(work)


@contextlib.contextmanager
def timed_section() -> Iterator[None]:
    """What is done within is measured, or chosen by times."""
    with _level(timing=True):
        yield


@contextlib.contextmanager
def untimed_section() -> Iterator[None]:
    """Of what is done within no time is told but how long it took: a compiler, a verification, a wait."""
    with _level(timing=False):
        yield


@contextlib.contextmanager
def _level(*, timing: bool) -> Iterator[None]:
    with _state:
        before = _levels[-1]
        _levels.append(timing)
        _change(before, timing)
    try:
        yield
    finally:
        with _state:
            was, now = _levels.pop(), _levels[-1]
            _change(was, now)


def _change(before: bool, now: bool) -> None:
    if before != now:
        for work in _work:
            (work.halt if now else work.go_on)()
