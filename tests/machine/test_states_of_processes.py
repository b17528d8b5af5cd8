"""What the system says of processes whose names and states are known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelworks.machine import process_state as subject
from kernelworks.machine.child_process import tree_now


def test_a_process_is_itself() -> None:
    found = subject.process_state(os.getpid())
    assert found is not None and found.parent == os.getppid() and found.state == "R"
    assert 0 < found.own_cpu_s <= found.cpu_s
    assert dict(subject.every_process())[os.getpid()].name == found.name
    assert "R" in subject.thread_states(os.getpid())


def test_a_halted_an_ended_and_a_waited_for_one_are_told_apart() -> None:
    program = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        halted = subject.process_state(child.pid)
        assert halted is not None and halted.state == "T" and halted.parent == os.getpid()
        assert subject.thread_states(child.pid) == ["T"]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert subject.process_state(child.pid).state == "Z"  # type: ignore[union-attr]
        child.wait()
        assert subject.process_state(child.pid) is None and subject.thread_states(child.pid) == []


@pytest.mark.parametrize("name", ["plain", "a b", "a) R 1 (b", ") "])
def test_a_name_may_hold_blanks_and_brackets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    tick = os.sysconf("SC_CLK_TCK")
    numbers = f"S 3 7 7 0 -1 0 0 0 0 0 {2 * tick} {tick} {tick} 0 20 0"
    (tmp_path / "7/stat").write_text(f"7 ({name}) {numbers}\n")
    assert subject.process_state(7) == (name, "S", 3, 3.0, 4.0)
    assert tree_now(7).cpu_s == 4.0 and not tree_now(7).compiles
    (tmp_path / "7/stat").write_text("7 (cut) S 3")
    assert subject.process_state(7) is None and dict(subject.every_process()) == {}
