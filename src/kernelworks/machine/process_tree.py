"""All that some processes have started, halted, let go on and ended together.

A process belongs to a tree if its parent does, or if it has the tree's mark in its environment: what a compiler has
started and left behind has another parent by then, and may be in another group or session.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from kernelworks.machine.process_state import every_process, members_below, process_state

__all__ = ["ProcessTree", "group_members", "kill_processes"]

POLL_S = 0.002
CLEANS_UP_S = 0.3  # for a compiler's driver to remove its temporary files: it takes a millisecond if it has a core
# Names of drivers, as the kernel cuts them: what compiles for them (cc1plus, as, ld) has no files of its own.
DRIVERS = ("g++", "gcc", "c++", "cc", "clang", "clang++", "collect2", "x86_64-linux-gn", "aarch64-linux-g")
VERSION = re.compile(r"-[\d.]+$")  # behind the name of one that CXX names: g++-12
ENDED_STATES = frozenset("ZX")
STILL_STATES = ENDED_STATES | frozenset("Tt")  # states of a process that does nothing


class ProcessTree:
    """The processes with one mark (``NAME=value`` of their environment, or how that begins), and those below ``roots``.
    Raises ValueError without a value: every process would be one of them."""

    def __init__(self, mark: str, roots: Callable[[], Iterable[int]]) -> None:
        if not mark.partition("=")[2]:
            raise ValueError(f"mark must be NAME=value, got {mark!r}")
        self._mark, self._roots = mark.encode(), roots

    def members(self) -> list[int]:
        """Their numbers, parents first. Cost: some ms: all processes are read."""
        every, own = dict(every_process()), os.getpid()
        every.pop(own, None)
        marked = (pid for pid in every if self._mark in _environment(pid))
        return members_below([*self._roots(), *marked], every)

    def halt(self, most_s: float = 2.0) -> bool:
        """Stops all of them. Returns whether all stand still: not if they are in the system for longer than that."""
        ends, stopped = time.monotonic() + most_s, set[int]()
        while True:
            fresh = [pid for pid in self.members() if pid not in stopped]
            for pid in fresh:  # what these have started meanwhile is found in the next look
                _signal(pid, signal.SIGSTOP)
            stopped.update(fresh)
            if not fresh and all(_letter(pid) in STILL_STATES for pid in stopped):
                return True
            if time.monotonic() > ends:
                return False
            time.sleep(POLL_S)

    def go_on(self) -> None:
        for pid in self.members():
            _signal(pid, signal.SIGCONT)

    def end(self, most_s: float = 2.0) -> None:
        """Kills all of them, also those that are halted."""
        kill_processes(self.members, most_s)


def group_members(group: int) -> list[int]:
    """The processes of a process group. Cost: some ms."""
    found = []
    for pid, _ in every_process():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def kill_processes(members: Callable[[], Iterable[int]], most_s: float = 2.0) -> None:
    """Kills these, also those that are halted, and what they start meanwhile: ``members`` is asked until none is left.
    The driver of a compiler is asked to end first, as it removes its temporary files then."""
    begin = time.monotonic()
    while (spent := time.monotonic() - begin) < most_s:
        left = {pid: state for pid in members() if (state := process_state(pid)) and state.state not in ENDED_STATES}
        if not left:
            return
        drivers = [pid for pid, state in left.items() if spent < CLEANS_UP_S and _is_driver(state.name)]
        for pid in left:  # in their order: who waits for another has nothing to start then
            if pid not in drivers:
                _signal(pid, signal.SIGKILL)
        for pid in drivers:
            _signal(pid, signal.SIGTERM)
            _signal(pid, signal.SIGCONT)
        time.sleep(POLL_S)


def _is_driver(name: str) -> bool:
    return VERSION.sub("", name) in DRIVERS


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _letter(pid: int) -> str:
    """Of its state; that of one that is gone if it has ended."""
    found = process_state(pid)
    return "X" if found is None else found.state


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's, or it has ended
        return b""
