"""When a worker that says nothing is ended: if it rests, or has worked long; not while others have the cores."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelworks.learn import worker_process


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], text=True, start_new_session=True)


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", "while True: pass"], ids=["rests", "works for ever"])
def test_a_worker_that_says_nothing_is_ended(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "PATIENCE_S", 0.1)
    worker = python(code)
    worker_process._Patience(worker)
    assert worker.wait() == -9


def test_a_worker_without_a_core_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "PATIENCE_S", 0.001)
    told = iter([(0.0, True), (0.0, True), (0.0005, False), (0.0005, True), (0.0005, False)])
    left = []

    def used(group: int) -> tuple[float, bool]:
        found = next(told)
        left.append(worker.poll())
        return found

    worker = python("import time; time.sleep(600)")
    monkeypatch.setattr(worker_process, "_used", used)
    worker_process._Patience(worker)
    assert worker.wait() == -9
    assert left == [None] * 5  # it was ended at the last look alone
