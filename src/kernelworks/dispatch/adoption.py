"""The C++ entry, built in the background and taken into use by the process that asked for it, at no cost to its calls.

Until the entry is there, calls are torch's function's at once and run no code of ours (``passthrough.py``), so none can
be counted. A thread therefore has them looked at again, at two moments:

- ``SETTLED_S`` after the first call of an op that found no entry. If an op is called then, the process is one that goes
  on calling ops, and a build is started (``build/background.py``). A script that calls an op once starts no compiler.
- When the entry is built. The thread has loaded it by then; the next call of each op takes it into use.

The thread ends after that, or ``MOST_S`` after a build was asked for. It sleeps otherwise: no call waits for it.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import Any, Protocol

from kernelworks.build import background, native

__all__ = ["entered_in_python", "may_adopt", "watch"]

SETTLED_S = 5.0
POLL_S = 2.0
MOST_S = 900.0
ROUNDS = 3  # in which no call is found that was under way when the entry came

_lock = threading.Lock()
_called = threading.Event()  # an op was called through Python, since the thread asked
_started = False  # the thread, once in a process
_entries: list[weakref.ref[Any]] = []


class PythonEntry(Protocol):
    """An op's entry, as far as it is taken from Python to C++."""

    def look_again(self) -> bool:
        """Has the next call ask for the extension. False if calls go through it, or none was made yet."""
        ...


def watch(entry: PythonEntry) -> None:
    """Has an entry taken into C++ once that is built."""
    _entries.append(weakref.ref(entry))


def entered_in_python() -> None:
    """An op was called that found no extension: at its first call, and whenever ``look_again`` was asked of it."""
    global _started
    _called.set()
    if _started or background.reason_against() or not native.is_missing():
        return
    with _lock:
        if not _started:
            _started = True
            background.watch_forks()
            threading.Thread(target=_wait_and_adopt, name="kernelworks-native", daemon=True).start()


def may_adopt() -> bool:
    """Whether calls may go another way from now on: a program of Dynamo's that reads how they go would be compiled
    again."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames is None or not getattr(frames, "FRAME_COUNTER", 1)


def _look_again() -> bool:
    """Whether there is an op whose calls still go through Python."""
    found = [entry.look_again() for place in list(_entries) if (entry := place()) is not None]
    return any(found)


def _wait_and_adopt() -> None:
    time.sleep(SETTLED_S)
    _called.clear()
    _look_again()
    _called.wait()
    end, started = time.monotonic() + MOST_S, False
    while background.reason_against() or native.find_extension(again=True) is None:
        if time.monotonic() > end or not native.is_missing():
            return
        started = started or background.start()
        time.sleep(POLL_S)
    quiet = 0
    while quiet < ROUNDS and may_adopt():
        quiet = 0 if _look_again() else quiet + 1
        time.sleep(POLL_S)
