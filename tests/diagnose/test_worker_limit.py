"""When a worker that says nothing is taken for one that hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelworks.diagnose.fix import worker_limit
from kernelworks.diagnose.fix.worker_limit import LOOK_S, QUIET_S, Silence, WorkerLimit
from kernelworks.machine.child_process import Tree, tree_bytes, tree_now

RESTS_S, SILENT_S = 20.0, 60.0
TRIAL = Silence(RESTS_S, SILENT_S)
FOREVER = float("inf")


class Clock:
    """The time, and what the worker's processes have used by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.share, self.compiles, self.awake = 0.0, 0.0, False, False
        monkeypatch.setattr(worker_limit.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(
            worker_limit, "tree_now", lambda pid: Tree(self.share * self.now, self.compiles, self.awake)
        )
        monkeypatch.setattr(worker_limit, "resident_bytes", lambda pid: 0)

    def ends_after(self, silence: Silence = TRIAL, budget: float = FOREVER) -> tuple[float | None, WorkerLimit]:
        """Seconds of silence after which the worker is ended."""
        self.now = 0.0
        limit = WorkerLimit(1)
        limit.begin(silence)
        return self.ended(limit, budget), limit

    def ended(self, limit: WorkerLimit, budget: float = FOREVER, most: float = 1000.0) -> float | None:
        while self.now < most:
            self.now += 0.25
            if limit.is_reached(budget):
                return self.now
        return None


def about(seconds: float) -> object:
    """Looks are apart."""
    return pytest.approx(seconds, abs=QUIET_S + 2 * LOOK_S)


@pytest.mark.parametrize(("left", "taken", "ends"), [(0.09, 0.91, True), (0.09, 0.85, False), (0.2, 0.91, False)])
def test_what_its_children_take_is_its_own(
    left: float, taken: float, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at only if little is left; if others have it, it is none of the worker's."""
    clock, free = Clock(monkeypatch), [1e9]
    monkeypatch.setattr(worker_limit, "available_bytes", lambda: free[0])
    monkeypatch.setattr(worker_limit, "tree_bytes", lambda pid: taken * 1e9)
    limit = WorkerLimit(1)
    clock.now += 0.25
    assert not limit.is_reached(FOREVER)
    free[0] *= left
    assert limit.is_reached(FOREVER) == ends
    assert ("its processes grew past 0.9 GB" in limit.cause) == ends


def test_memory_of_a_tree_counts_what_is_shared_once() -> None:
    """A child has 64 MB of its own, and 128 MB with its parent."""
    program = (
        "import os, time\nshared = b'x' * (128 << 20)\nif not os.fork():\n    own = b'y' * (64 << 20)\n"
        "    print('ready', flush=True)\n    time.sleep(1000)\nos.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline()
        seen = tree_bytes(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
    assert 192 << 20 <= seen < 256 << 20


def test_who_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    waits, limit = clock.ends_after()  # for what never comes
    assert waits == about(RESTS_S) and "it hung: for 2" in limit.cause and not limit.is_part
    clock.share = 0.01  # it polls for that
    polls, _ = clock.ends_after()
    assert polls == about(RESTS_S)
    clock.share = 2.0  # both cores, in a loop without an end
    spins, limit = clock.ends_after()
    assert spins == about(SILENT_S) and "it hung: nothing was heard" in limit.cause and not limit.is_part
    clock.share = 0.25  # others have the cores
    starved, _ = clock.ends_after()
    assert starved is not None and 3 * SILENT_S < starved < 4 * SILENT_S + 2 * QUIET_S
    clock.share, clock.awake = 0.0, True  # they have had all of them so far, or it waits for a disk
    assert clock.ends_after()[0] is None
    clock.compiles, clock.share = True, 2.0
    assert clock.ends_after()[0] is None
    ended, limit = clock.ends_after(budget=100.0)
    assert ended == pytest.approx(100.0, abs=1) and limit.is_budget


def test_a_compiler_that_works_has_its_part_of_the_budget_and_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.share = 1.0
    ended, limit = clock.ends_after(Silence(RESTS_S, 200.0, compiles=True))
    assert ended == about(200.0) and limit.is_part and "hung" not in limit.cause and "compiling" in limit.cause
    clock.share = 0.0  # it waits for a lock
    ended, limit = clock.ends_after(Silence(RESTS_S, 200.0, compiles=True))
    assert ended == about(RESTS_S) and not limit.is_part and "hung" in limit.cause


def test_a_step_with_a_limit_of_its_own_is_ended_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.share, clock.now = 1.0, 0.0
    limit = WorkerLimit(1)
    limit.begin(TRIAL)
    limit.within(30.0)
    while not limit.is_reached(FOREVER):
        clock.now += 0.25
        limit.progress()
    assert clock.now == about(30.0) and limit.is_part and "its part of the budget" in limit.cause
    limit = WorkerLimit(1)
    limit.begin(TRIAL)
    limit.within(30.0)
    clock.now += 25.0
    assert not limit.is_reached(FOREVER)
    limit.within(0.0)  # it has ended: the trial's own limit holds again
    began = clock.now
    ended = clock.ended(limit)
    assert ended is not None and ended - began == about(SILENT_S)


def test_who_waits_for_what_is_built_beside_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limit = WorkerLimit(1, lambda: clock.now < 500.0)
    limit.begin(TRIAL)
    assert clock.ended(limit) == about(500.0 + RESTS_S) and "hung" in limit.cause


def test_what_says_something_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.share = 1.0
    limit = WorkerLimit(1)
    assert clock.ended(limit, most=200.0) is None  # before the first trial: the program's own runs
    limit.begin(TRIAL)
    for _ in range(5):
        clock.now += SILENT_S - QUIET_S
        assert not limit.is_reached(FOREVER)
        limit.progress()


def test_between_trials_only_rest_is_none_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.share = 1.0
    limit = WorkerLimit(1)
    limit.begin(TRIAL)
    limit.end()
    assert clock.ended(limit) is None
    clock.share = 0.0
    limit.end()
    began = clock.now
    ended = clock.ended(limit, most=2000.0)
    assert ended is not None and ended - began == about(RESTS_S)


def test_what_other_processes_do_is_seen() -> None:
    """One that spins, and one that sleeps, both in a child."""
    for what, awake in (("while True: pass", True), ("import time; time.sleep(1000)", False)):
        child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {what!r}])"
        with subprocess.Popen([sys.executable, "-c", child], start_new_session=True) as worker:
            found = tree_now(worker.pid)
            before = found.cpu_s
            while found.awake != awake or (awake and found.cpu_s - before < 0.2):
                found = tree_now(worker.pid)
                time.sleep(0.02)
            os.killpg(worker.pid, signal.SIGKILL)


def test_a_compiler_is_seen_in_a_session_of_its_own(tmp_path: Path) -> None:
    """So ours are started, and so a builder in the background is."""
    compiler = tmp_path / "cc1plus"
    compiler.symlink_to(os.path.realpath(shutil.which("sleep") or "/bin/sleep"))
    program = (
        "import subprocess, sys, time\n"
        "while time.process_time() < 0.05: pass\n"  # some ticks of 10 ms, in which the system counts
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
