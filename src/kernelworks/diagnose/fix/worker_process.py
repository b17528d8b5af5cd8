"""A process of a fix's, as its supervisor has it: what it is told, what it says, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from kernelworks.diagnose.fix.worker import SPOILT
from kernelworks.machine import environment
from kernelworks.machine.descriptors import is_readable
from kernelworks.machine.process_tree import group_members, kill_processes
from kernelworks.profile.standard_input import kept_input
from kernelworks.records.json_text import json_messages, to_json

__all__ = ["LEAVE_S", "Messages", "cause_of_end", "worker_process"]

LISTENS_S = 60.0  # after so long a worker listens to what it is to do: it imports torch before
LEAVE_S = 10.0  # for a worker that has said all, or was killed, to end
LOOK_S = 0.25  # between two looks at what it takes


@contextlib.contextmanager
def worker_process(
    module: str, request: Mapping[str, Any], seconds_left: float, errors: IO[bytes] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Messages]]:
    """``python -m module`` with its request; on leaving it has ended, and every process that it started in its group.
    ``errors`` takes what it writes to stderr."""
    ours, theirs = socket.socketpair()
    package = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(filter(None, (environment.variables().get("PYTHONPATH", ""), package)))
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(kept_input())],
            pass_fds=(theirs.fileno(), kept_input()), stderr=errors,
            env=environment.variables() | {"PYTHONPATH": paths}, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        try:
            ours.settimeout(max(1.0, min(LISTENS_S, seconds_left)))
            with contextlib.suppress(OSError):  # it has ended, or does not listen: so the look at it says
                ours.sendall((to_json(request, line=True) + "\n").encode())
            yield process, Messages(ours)
        finally:
            kill_processes(lambda: group_members(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it: the fix does not wait for that
                process.wait(LEAVE_S)


class Messages:
    """What a worker sends."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket, self._rest = ours, b""

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended, or does not listen
            self._socket.sendall((to_json(message, line=True) + "\n").encode())

    def until(self, over: Callable[[], bool], ended: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Each message, until the worker has ``ended`` or ``over`` says so. Its end of the socket alone tells too late:
        what the program has forked holds that too."""
        while not over():
            has_ended = ended()  # asked first: what it sent before is read then
            if not is_readable(self._socket, 0.0 if has_ended else LOOK_S):
                if has_ended:
                    return
                continue
            try:
                received = self._socket.recv(1 << 20)
            except ConnectionResetError:
                return
            if not received:
                return
            *whole, self._rest = (self._rest + received).split(b"\n")
            yield from json_messages(line.decode() for line in whole)


def cause_of_end(process: subprocess.Popen[bytes]) -> str:
    """Why nothing more is heard of a worker: as a rule it has ended."""
    try:
        return _ending(process.wait(LEAVE_S))
    except subprocess.TimeoutExpired:
        return "nothing can be heard of it any more, and its process was ended"


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code == SPOILT:
        return "its process could not be put back as it was"
    if code >= 0:
        return f"its process exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    words = SIGNALS.get(name, "")
    return f"its process was ended by {name}{f' ({words})' if words else ''}"


SIGNALS = {
    "SIGSEGV": "segmentation fault", "SIGABRT": "abort", "SIGKILL": "killed, as when memory runs out",
    "SIGBUS": "bus error", "SIGILL": "illegal instruction", "SIGFPE": "arithmetic error",
}  # fmt: skip
