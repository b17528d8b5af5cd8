"""Processes side by side: each prepares and says so, and is timed as soon as it does, while the others are halted.

What stands still is whole groups of processes, their compilers too, and a halted process's time limit stands still with
it. Nothing that is timed waits for a halted process: it has compiled everything before it says that it is ready. Should
it wait for a lock of theirs all the same, it is ended and prepared once more, with nobody beside it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "HALTED",
    "LEAST_S",
    "READY",
    "RESULT",
    "Entry",
    "Heard",
    "Started",
    "Task",
    "end_on_sigterm",
    "side_by_side",
    "wait_for_turn",
]

Task = tuple[str, str]  # a program, a mode
Entry = dict[str, Any]
Heard = queue.Queue[tuple["Started", str]]

LEAST_S = 15.0  # what is begun with less than this left would be cut off
STILL_S = 0.25  # until all threads of halted processes stand
STANDING_S = 90.0  # for which the others stand still at the most, where nothing else is said
RESULT, HALTED = "result.json", "halted_s.txt"  # in a process's folder: what it found, for how long it was halted
READY = "ready"
OUT_OF_MEMORY = ("out of memory", "alloc_failed")


class Started:
    """A process and all that it starts, in a group of their own: halted, let go on and ended together.

    The group stays in our session: whose leader is gone while it is halted the kernel wakes and ends.
    """

    def __init__(
        self,
        command: list[str],
        folder: Path,
        limit: float,
        *,
        heard: Heard | None = None,
        environment: Mapping[str, str] | None = None,
        echo: bool = False,
    ) -> None:
        """``echo``: what it writes to stdout is shown as it comes."""
        self.echo = echo
        self.folder, self.log, self.limit = folder, folder / "log.txt", limit
        self.deadline, self.halted_s = time.monotonic() + limit, 0.0
        self.said: list[str] = []
        self.ended, self.killed = threading.Event(), False
        self._heard: Heard = heard if heard is not None else queue.Queue()
        self._since: float | None = None
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                process_group=0, env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.strip() == READY:
                self._heard.put((self, READY))
            elif self.echo:
                print(line, end="", flush=True)

    def _wait(self) -> None:
        with contextlib.suppress(ChildProcessError):  # `end` was quicker
            how = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # its number stays taken until `end`
            self.killed = how is not None and how.si_code == os.CLD_KILLED and how.si_status == signal.SIGKILL
        self.ended.set()
        self._heard.put((self, ""))

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def halt(self) -> None:
        self._since = time.monotonic()
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Its deadline is as much later, and its file ``HALTED`` says so before it can look at a clock."""
        if self._since is None:
            return
        stood = time.monotonic() - self._since
        self.halted_s, self.deadline, self._since = self.halted_s + stood, self.deadline + stood, None
        (self.folder / HALTED).write_text(f"{self.halted_s!r}\n", encoding="ascii")
        self._signal(signal.SIGCONT)

    def begin(self) -> None:
        """Tells a process that is ready to time its program."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and left word why
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def end(self) -> None:
        if self.process.returncode is None:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def all_said(self) -> str:
        """What it wrote to stdout, once it has ended."""
        self._reading.join(timeout=5.0)
        return "".join(self.said)

    def last(self) -> str:
        """The last line of what it wrote to stderr."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "nothing was said"

    def found(self) -> Entry:
        """What a process that has ended left as its result."""
        result = self.folder / RESULT
        if result.is_file():
            return dict(json.loads(result.read_text(encoding="utf-8")))
        return {"failed": f"ended without a word: {self.last()}"}

    def took_too_long(self) -> Entry:
        return {"failed": f"took more than {self.limit:.0f} s"}


def _crowded_out(process: Started, entry: Entry) -> bool:
    """Whether it, or one of its parts, failed for want of memory, which others beside it may have had."""
    parts = (entry, *(part for part in entry.values() if isinstance(part, dict)))
    said = " ".join(str(part.get("failed", "")) for part in parts).lower()
    return process.killed or any(words in said for words in OUT_OF_MEMORY)


class _Running:
    """The processes that there are now, by their tasks, and what is heard of them."""

    def __init__(self, end: float, standing: float, tell: Callable[[Task, Entry | None], None]) -> None:
        self.end, self.standing, self.tell = end, standing, tell
        self.heard: Heard = queue.Queue()
        self.tasks: dict[Started, Task] = {}
        self.again: list[Task] = []

    def close(self, process: Started, entry: Entry | None) -> None:
        process.end()
        task = self.tasks.pop(process)
        self.tell(task, entry)

    def next(self) -> None:
        """Waits for a word of one of them, or for a deadline, and does what follows from it."""
        if not self.tasks:
            return
        until = min(self.end, *(process.deadline for process in self.tasks))
        try:
            process, word = self.heard.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            self._overdue()
            return
        if process in self.tasks:  # else the last words of one that was ended
            (self._time if word == READY else self._told)(process)

    def _overdue(self) -> None:
        now = time.monotonic()
        for process in list(self.tasks):
            if now >= self.end:
                self.close(process, None)
            elif now >= process.deadline:
                self.close(process, process.took_too_long())

    def _told(self, process: Started) -> None:
        """It has ended by itself."""
        entry = process.found()
        if len(self.tasks) > 1 and _crowded_out(process, entry):
            process.end()
            self.again.append(self.tasks.pop(process))
        else:
            self.close(process, entry)

    def _time(self, process: Started) -> None:
        others = [other for other in self.tasks if other is not process]
        try:
            for other in others:
                other.halt()
            time.sleep(STILL_S if others else 0.0)
            last = min(time.monotonic() + (self.standing if others else process.limit), self.end)
            process.begin()
            if process.ended.wait(timeout=max(last - time.monotonic(), 0.0)):
                self._told(process)
            elif time.monotonic() >= self.end:
                self.close(process, None)
            elif others:  # it may wait for what a halted process holds
                process.end()
                self.again.append(self.tasks.pop(process))
            else:
                self.close(process, process.took_too_long())
        finally:
            for other in others:
                other.go_on()


def side_by_side(
    tasks: Iterable[Task],
    start: Callable[[Task, Heard], Started],
    *,
    end: float,
    together: int,
    tell: Callable[[Task, Entry | None], None],
    standing: float | None = None,
) -> None:
    """Prepares ``together`` of the tasks at once (as soon as one has ended the next begins) and times whichever is
    ready while the others are halted.

    What came of each is told at once: what its process found or ``{"failed": why}``, and None of what ``end`` (by
    ``time.monotonic``) cut off, or left no time for. What may have failed because of the others has another turn after
    them, alone. None is timed for longer than ``standing`` seconds while others stand still. Nothing that was started
    is left behind, whatever ends this.
    """
    waiting = collections.deque(tasks)
    running = _Running(end, STANDING_S if standing is None else standing, tell)
    try:
        while waiting or running.tasks:
            while waiting and len(running.tasks) < together and end - time.monotonic() > LEAST_S:
                task = waiting.popleft()
                running.tasks[start(task, running.heard)] = task
            if not running.tasks:
                break
            running.next()
    finally:
        for process in running.tasks:
            process.end()
    for task in waiting:
        tell(task, None)
    for task in running.again:
        side_by_side([task], start, end=end, together=1, tell=tell, standing=standing)


def wait_for_turn() -> None:
    """Said by a process that has prepared: it goes on once the others stand."""
    print(READY, flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody is left to be told")


def end_on_sigterm() -> None:
    """From now on SIGTERM ends this process as an exception does, so that what was started ends too; and a hangup that
    this process ignores (``nohup``) what it starts does not ignore, as that is what ends it when it is halted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
