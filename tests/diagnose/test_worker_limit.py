"""When a worker that says nothing is taken for one that hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelworks.diagnose.fix import worker_limit
from kernelworks.diagnose.fix.worker_limit import REST_S, WorkerLimit
from kernelworks.machine.child_process import Tree, tree_now

SILENT_S = 60.0


class Clock:
    """The time, and what the worker's processes have used by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.share, self.compiles = 0.0, 0.0, False
        monkeypatch.setattr(worker_limit.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(worker_limit, "tree_now", lambda pid: Tree(self.share * self.now, self.compiles))
        monkeypatch.setattr(worker_limit, "resident_bytes", lambda pid: 0)

    def ends_after(self, most: float = 1000.0, budget: float = float("inf")) -> float | None:
        """Seconds of silence after which the worker is ended."""
        limit, self.now = WorkerLimit(1), 0.0
        limit.begin(SILENT_S)
        while self.now < most:
            self.now += 0.25
            if limit.is_reached(budget):
                assert ("hung" in limit.cause) != limit.is_budget
                return self.now
        return None


def test_who_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    waits = clock.ends_after()  # for what never comes
    assert waits is not None and SILENT_S + REST_S < waits < SILENT_S + REST_S + 1
    clock.share = 2.0  # both cores, in a loop without an end
    spins = clock.ends_after()
    assert spins is not None and SILENT_S < spins < SILENT_S + 1
    clock.share = 0.25  # others have the cores
    starved = clock.ends_after()
    assert starved is not None and starved == pytest.approx(4 * SILENT_S, abs=1)
    clock.compiles = True
    assert clock.ends_after() is None
    assert clock.ends_after(budget=100.0) == pytest.approx(100.0, abs=1)


def test_who_waits_for_what_is_built_beside_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limit = WorkerLimit(1, lambda: clock.now < 500.0)
    limit.begin(SILENT_S)
    while not limit.is_reached(float("inf")):
        clock.now += 0.25
    assert "hung" in limit.cause and 500.0 + REST_S <= clock.now < 500.0 + REST_S + 1


def test_what_says_something_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.share = 1.0
    limit = WorkerLimit(1)
    limit.begin(SILENT_S)
    for _ in range(5):
        clock.now += SILENT_S
        assert not limit.is_reached(float("inf"))
        limit.progress()
    limit.end()
    clock.now += 1000.0
    assert not limit.is_reached(float("inf"))


def test_a_compiler_is_seen_in_a_session_of_its_own(tmp_path: Path) -> None:
    """So ours are started, and so a builder in the background is."""
    compiler = tmp_path / "cc1plus"
    compiler.symlink_to(os.path.realpath(shutil.which("sleep") or "/bin/sleep"))
    program = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([{str(compiler)!r}, '1000'], start_new_session=True)\n"
        "print(child.pid, flush=True)\nsys.stdin.read()\nchild.kill()\nchild.wait()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert int(worker.stdout.readline())  # Popen returns once the child runs its program
        seen = tree_now(worker.pid)
        worker.stdin.close()
    assert seen.compiles and seen.cpu_s > 0
    assert not tree_now(worker.pid).compiles
