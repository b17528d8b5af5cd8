"""The check of a forked child: what a child does decides, and not how long a busy machine makes it take."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch

from kernelworks.dispatch.op import OPS
from kernelworks.machine import child_process
from kernelworks.machine.child_process import wait_unless_stuck
from kernelworks.verify import checks
from kernelworks.verify.reference import compute_reference


def child_of(does: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            does()
            code = 0
        finally:
            os._exit(code)
    return child


def spin(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


@pytest.fixture
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "LOOKS", 30)
    monkeypatch.setattr(child_process, "LOOK_S", 0.01)


@pytest.mark.usefixtures("few_looks")
def test_a_child_that_works_is_waited_for() -> None:
    """Longer than one that sleeps is: thirty looks are a third of a second."""
    assert wait_unless_stuck(child_of(lambda: spin(time.process_time() + 0.6))) == 0


@pytest.mark.usefixtures("few_looks")
def test_a_child_that_is_kept_from_working_is_waited_for() -> None:
    child = child_of(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    resumed = threading.Timer(0.8, os.kill, (child, signal.SIGCONT))
    resumed.start()
    assert wait_unless_stuck(child) == 0
    resumed.join()


@pytest.mark.usefixtures("few_looks")
def test_a_child_that_waits_for_what_never_comes_is_stuck() -> None:
    lock = threading.Lock()
    with lock:
        child = child_of(lambda: lock.acquire() and None)
        assert wait_unless_stuck(child) is None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_child_that_spins_forever_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "CPU_S", 0.3)
    assert wait_unless_stuck(child_of(lambda: spin(1e9))) is None


def test_what_went_wrong_in_a_child_is_told() -> None:
    assert os.waitstatus_to_exitcode(wait_unless_stuck(child_of(lambda: os._exit(7))) or 0) == 7
    assert wait_unless_stuck(child_of(lambda: os.kill(os.getpid(), signal.SIGKILL))) == signal.SIGKILL


@pytest.mark.usefixtures("few_looks")
def test_the_check_says_which_of_both_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    op, call, parent = OPS["relu"], checks._call, os.getpid()
    expected = compute_reference(op, next(c for c in op.contract.cases if c.name.endswith("N=257")), torch.float32)
    monkeypatch.setattr(checks, "_large_cases", lambda op, kernel: [expected])
    assert checks.CHECKS["after_fork"](op, "scalar") == ""

    def waits(*args: object) -> list[object]:
        if os.getpid() != parent:
            threading.Event().wait()
        return call(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(checks, "_call", waits)
    assert "never comes" in checks.CHECKS["after_fork"](op, "scalar")
    monkeypatch.setattr(checks, "_call", lambda *args: call(*args)[: os.getpid() == parent])
    assert "wrong in a forked child" in checks.CHECKS["after_fork"](op, "scalar")
