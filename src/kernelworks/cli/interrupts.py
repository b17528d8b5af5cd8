"""Ctrl-C, and what a scheduler or a closed terminal sends: a command ends within a second, with what it has started.

Python raises KeyboardInterrupt in the main thread once that runs Python again, and then leaves ``with`` blocks, some of
which wait for threads that wait for compilers. So a thread of ours watches for the signal (``set_wakeup_fd``): it says
that the command was interrupted, and if the command is not over in time it ends every process that was started
since, and this one. SIGTERM and SIGHUP raise KeyboardInterrupt too, so that what was measured until then is shown and
written. What the build cache holds is whole whenever a process ends (``build/cache.py``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import Any, NoReturn

from kernelworks.machine.process_state import every_process, members_below
from kernelworks.machine.process_tree import kill_processes

__all__ = ["INTERRUPTED_CODE", "Interrupts", "end_after_this", "report_begins"]

INTERRUPTED_CODE = 130
GRACE_S = 0.5  # in which the command may leave by itself
REPORT_S = 2.0  # more, if it prints and writes what it has measured; a second Ctrl-C does not wait
ENDING = (signal.SIGTERM, signal.SIGHUP)  # unless they are ignored, as by nohup, or the caller has an answer of its own
ONE_S = 0.3  # signals within that time are one: a terminal sends it to every process, and forks may share our pipe


class Interrupts:
    """As a context, around a whole command. Outside the main thread it does nothing."""

    def __init__(self) -> None:
        self._is_said = self._reports = False
        self._show_cursor = "\x1b[?25h\r\x1b[K" if sys.stderr.isatty() else ""  # a progress line hides it
        self._signal = signal.SIGINT
        self._received = threading.Event()
        self.warnings = 0  # so many signals are the command's own to answer
        self._left = threading.Event()

    def __enter__(self) -> Interrupts:
        global _current
        _current = self
        self._before: int | None = None
        if threading.current_thread() is threading.main_thread():
            self._read, write = os.pipe()
            os.set_blocking(write, False)
            self._there = _descendants()
            self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            os.register_at_fork(after_in_child=_forget)
            for number in ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, signal.default_int_handler)
            threading.Thread(target=self._watch, name="kernelworks interrupts", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """If the command was interrupted, ends what it has started, and this process: what Python does at its end takes
        seconds with torch, or waits for threads."""
        global _current
        _current = None
        if self._before is None:
            return
        interrupted = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", None) == INTERRUPTED_CODE
        if self._received.is_set() or (interrupted and self._received.wait(0.1)):
            self._leave()
        if interrupted:  # by the program itself
            self._say()
        self._left.set()
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(self._before)
        _put_back()

    def _watch(self) -> None:
        last, seen = 0.0, 0
        while not self._left.is_set():
            numbers = os.read(self._read, 64)
            number = next((each for each in (signal.SIGINT, *ENDING) if each in numbers), None)
            if number is None:
                continue
            now = time.monotonic()
            if now - last < ONE_S:
                continue
            last, seen = now, seen + (number == signal.SIGINT)
            if number == signal.SIGINT and seen <= self.warnings:
                continue
            if self._received.is_set():  # once more
                self._leave()
            self._signal = number
            self._say()
            self._received.set()
            threading.Thread(target=self._wait, name="kernelworks deadline", daemon=True).start()

    def _wait(self) -> None:
        time.sleep(GRACE_S)
        if self._reports:
            time.sleep(REPORT_S)
        self._leave()

    def _leave(self) -> NoReturn:
        subprocess.Popen.__init__ = _refuse  # type: ignore[method-assign]  # threads may be about to start the next one
        _end(self._there)
        flush = threading.Thread(target=_flush, daemon=True)  # it may wait for whoever reads
        flush.start()
        flush.join(0.1)
        _end(self._there)
        os._exit(128 + self._signal)  # as a shell says it: 130 after Ctrl-C

    def _say(self) -> None:
        if not self._is_said:
            with contextlib.suppress(OSError):
                os.write(2, f"{self._show_cursor}kernelworks: interrupted\n".encode())
            self._is_said = True


_current: Interrupts | None = None


def end_after_this() -> None:
    """The first Ctrl-C is the command's own: it ends once what it is doing is done."""
    if _current is not None:
        _current.warnings = 1


def report_begins() -> None:
    """What was measured until the interrupt is being printed."""
    if _current is not None:
        _current._reports = True


def _refuse(*given: Any, **more: Any) -> None:
    raise OSError("the command was interrupted")


def _forget() -> None:
    """A fork shares the pipe: signals to it are none of ours. A SIGTERM ends it, as whoever forked it relies on."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    _put_back()


def _put_back() -> None:
    for number in ENDING:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _descendants() -> list[int]:
    """The processes that this one, and those, have started; parents first."""
    return members_below([os.getpid()], dict(every_process()))[1:]


def _end(before: Collection[int]) -> None:
    """Ends every process that was started since."""
    kill_processes(lambda: [pid for pid in _descendants() if pid not in before])
