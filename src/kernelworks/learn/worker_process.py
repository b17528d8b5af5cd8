"""The process that runs a learner's function, seen from outside: what it says line by line, and what it prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.learn.faults import Verdict
from kernelworks.machine import environment

__all__ = ["MOST_PRINTED_BYTES", "PRINT_MARK", "Attempt", "Report", "printed_in", "run_worker"]

PRINT_MARK = "\x1e"  # stands before a case's name in what the functions print
LIBRARY_WORDS = re.compile(r"^/\S+:\d+: .*Assertion '.*' failed\.\n?", re.M)  # of C++'s own, which the verdict says
MOST_PRINTED_BYTES = 600  # of what a function prints in one call
MOST_READ_BYTES = 1 << 23  # of what it prints in all calls
PATIENCE_S = 60.0  # without a word from the worker: of its own time, or of rest, as where nobody lets a lock go


@dataclass
class Attempt:
    """What the worker said of one attempt."""

    call: dict[str, Any] = field(default_factory=dict)
    signal: dict[str, Any] = field(default_factory=dict)
    so_far: Verdict | None = None  # on the cases before the one that ended the process
    verdict: Verdict | None = None
    refused: dict[str, Any] = field(default_factory=dict)  # a file that cannot be loaded: line and text
    compiled: list[tuple[str, int, int, int]] = field(default_factory=list)  # kernels, and what they take of a GPU
    calls: int = 0


@dataclass
class Report:
    """What the worker said, and what the functions that it called printed."""

    attempts: list[Attempt]
    times: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    printed: str = ""


def run_worker(
    task: Mapping[str, Any],
    count: int,
    module: str = "kernelworks.learn.worker",
    variables: Mapping[str, str] | None = None,
) -> Report:
    """What the worker says of each attempt, the times, and the error that ended it. A worker that says nothing for
    long is killed if it rests, since what it waits for does not come, or has worked all that time."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, str(writing)]
    single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    printed = tempfile.TemporaryFile()  # noqa: SIM115, it is closed below
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT, text=True, pass_fds=(writing,),
        env={**environment.variables(), **single, **(variables or {})}, start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    report = Report([Attempt() for _ in range(count + 1)])
    patience = _Patience(worker)
    try:
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(task))
        worker.stdin.close()
        now = report.attempts[0]
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                patience.begin_anew()
                said = json.loads(line)
                if "attempt" in said:
                    now = report.attempts[said["attempt"]]
                elif "call" in said:
                    now.call, now.calls = said["call"], now.calls + 1
                elif "signal" in said:
                    now.signal = said
                elif "so_far" in said:
                    now.so_far = Verdict(**said["so_far"])
                elif "verdict" in said:
                    now.verdict = Verdict(**said["verdict"])
                elif "refused" in said:
                    now.refused = said["refused"]
                elif "compiled" in said:
                    now.compiled = said["compiled"]
                elif "times" in said:
                    report.times = said["times"]
                elif "error" in said:
                    report.error = said["error"]
    finally:
        patience.end()
        _kill(worker)
        worker.wait()
    printed.seek(0)
    report.printed = printed.read(MOST_READ_BYTES).decode(errors="replace")
    printed.close()
    return report


def printed_in(printed: str, verdict: Verdict) -> str:
    """What one call of the case that the verdict is about printed, or of the first that printed; behind the case."""
    parts = [part.partition("\n") for part in LIBRARY_WORDS.sub("", printed).split(f"\n{PRINT_MARK}")[1:]]
    found = [(about, text) for about, _, text in parts if text and about == (verdict.case or about)]
    if not found:
        return ""
    about, text = found[0] if verdict.cases else found[-1]  # the last call is the one that ended the process
    return f"{about}:\n{text[:MOST_PRINTED_BYTES]}"


def _kill(worker: subprocess.Popen[str]) -> None:
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _used(group: int) -> tuple[float, bool]:
    """The processor's time in seconds that a group of processes has used, and whether one of them runs or would if it
    had a core."""
    ticks, runs = 0, False
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += sum(int(field) for field in fields[11:15])
            runs |= fields[0] in (b"R", b"D")
    return ticks / os.sysconf("SC_CLK_TCK"), runs


class _Patience:
    """Ends a worker that says nothing and does nothing. On a machine whose cores others have it may be silent for
    minutes."""

    def __init__(self, worker: subprocess.Popen[str]) -> None:
        self._worker, self._said, self._over = worker, threading.Event(), False
        threading.Thread(target=self._watch, daemon=True).start()

    def begin_anew(self) -> None:
        self._said.set()

    def end(self) -> None:
        self._over = True
        self._said.set()

    def _watch(self) -> None:
        begun = before = 0.0
        while not self._over:
            if self._said.wait(PATIENCE_S):
                self._said.clear()
                begun = before = -1.0
                continue
            used, runs = _used(self._worker.pid)
            begun, rests = (used if begun < 0 else begun), used == before and not runs
            if rests or used - begun >= PATIENCE_S:
                _kill(self._worker)
                return
            before = used
