"""Ctrl-C: the command says so, ends what it has started, and shows what was measured until then."""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import kernelworks as kw
from kernelworks.cli import app
from kernelworks.cli.interrupts import Interrupts
from kernelworks.diagnose import DiagnosisInterrupt
from kernelworks.diagnose.fix import supervisor
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.result import NOT_OVER
from kernelworks.records import Diagnosis, from_json
from kernelworks.records.fix import TriedOptimization
from kernelworks.report import page

# A command whose main thread waits for a thread that waits for a process that has a group of its own: a compiler's run.
STUCK = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from kernelworks.cli.console import guard_command
from kernelworks.cli.interrupts import end_after_this

PROGRAM = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"

def work(number):
    driver = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, start_new_session=True)
    print(driver.pid, int(driver.stdout.readline()), flush=True)
    driver.wait()

with guard_command([]):
    {first}
    with ThreadPoolExecutor(1) as pool:
        for number in range(100):  # each of them would wait again
            pool.submit(work, number)
"""

# One that catches what Python raises, and goes on.
STUBBORN = """
import time
from kernelworks.cli.console import guard_command

with guard_command([]):
    said = ["ready"]
    while True:
        try:
            if said:
                print(said.pop(), flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("caught", flush=True)
"""

# A fork shares the pipe that tells of signals.
FORKED = """
import os, time
from kernelworks.cli.console import guard_command

with guard_command([]):
    child = os.fork()
    if not child:
        try:
            print(os.getpid(), flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

RAISED = """
from kernelworks.cli.console import guard_command

with guard_command([]):
    raise KeyboardInterrupt
"""


def started(code: str) -> subprocess.Popen[str]:
    """A process of its own session that hears SIGINT, as one that a shell started in the background would not, and
    SIGHUP, as one below nohup would not."""

    def hear() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=hear,
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_was_started_ends_with_the_command(sent: signal.Signals, code: int) -> None:
    process = started(STUCK.replace("{first}", ""))
    pids = [int(pid) for pid in line(process).split()]
    assert all(map(is_alive, pids))
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said == "kernelworks: interrupted\n"
    until = time.monotonic() + 60  # what was killed is gone once it has a core
    while any(map(is_alive, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_verb_may_answer_the_first_one_itself() -> None:
    first = "end_after_this(); import signal; signal.signal(signal.SIGINT, lambda *_: None)"
    process = started(STUCK.replace("{first}", first))
    pids = [int(pid) for pid in line(process).split()]
    process.send_signal(signal.SIGINT)
    assert process.poll() is None and all(map(is_alive, pids))
    time.sleep(0.5)  # two within three tenths of a second are one
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == "kernelworks: interrupted\n"
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_program_that_goes_on_is_ended(sent: signal.Signals, code: int) -> None:
    """A scheduler's SIGTERM is heard as Ctrl-C is, so that a diagnosis shows what it has measured."""
    process = started(STUBBORN)
    assert line(process) == "ready"
    process.send_signal(sent)
    shown, said = process.communicate(timeout=60)
    assert process.returncode == code and said == "kernelworks: interrupted\n" and shown == "caught\n"


@pytest.mark.parametrize(("sent", "ends"), [(signal.SIGINT, 7), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_to_a_fork_is_not_ours(sent: signal.Signals, ends: int) -> None:
    """A fork that is told to end ends: DataLoader's workers, multiprocessing's."""
    process = started(FORKED)
    os.kill(int(line(process)), sent)
    shown, said = process.communicate(timeout=60)
    assert (process.returncode, shown, said) == (0, f"{ends}\n", "")


def test_an_interrupt_that_the_program_raises_ends_it_in_the_ordinary_way() -> None:
    process = started(RAISED)
    shown, said = process.communicate(timeout=60)
    assert (process.returncode, shown, said) == (130, "", "kernelworks: interrupted\n")


def test_without_an_interrupt_nothing_is_left() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with Interrupts():
        pass
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after)
    assert after == before


# ---------------------------------------------------------------- what was measured until then


def interrupting(at: int) -> Callable[[], torch.Tensor]:
    """A program whose run of that number is interrupted."""
    runs, x = 0, torch.ones(64, 64)

    def step() -> torch.Tensor:
        nonlocal runs
        runs += 1
        if runs == at:
            raise KeyboardInterrupt
        return torch.softmax(x @ x, -1)

    return step


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupted_diagnosis_tells_its_runs(at: int) -> None:
    with pytest.raises(DiagnosisInterrupt) as caught:
        kw.diagnose(interrupting(at), budget_s=0.5)
    assert len(caught.value.walls) == at - 1 and all(wall > 0 for wall in caught.value.walls)
    assert caught.value.diagnosis() is None


@pytest.fixture
def stopped_while_peaks_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("kernelworks.diagnose"), "measured_peaks", measured)


def test_once_ops_are_timed_they_are_told(stopped_while_peaks_are_measured: None) -> None:
    with pytest.raises(DiagnosisInterrupt) as caught:
        kw.diagnose(interrupting(10**9), budget_s=0.5)
    record = caught.value.diagnosis()
    assert record is not None and "interrupted" in record.sentence and record.interrupted
    ops = {hotspot.op: hotspot for hotspot in record.hotspots}
    assert {"mm", "softmax"} <= {op.removeprefix("aten::").lstrip("_") for op in ops} or len(ops) > 1
    assert all(hotspot.achieved is None and hotspot.high_s == 0 for hotspot in record.hotspots if hotspot.calls)
    assert from_json(Diagnosis, kw.records.to_json(record)) == record


def test_the_command_shows_what_was_measured(
    stopped_while_peaks_are_measured: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prog.py").write_text(
        "import torch\nx = torch.ones(64, 64)\ndef step():\n    return x @ x\n", encoding="utf-8"
    )
    result = CliRunner().invoke(app, ["diagnose", "prog.py:step"])
    assert result.exit_code == 130
    assert "measured until then: a first run of" in result.stderr
    assert "nterrupted, so this is what was measured until then" in result.stdout
    assert "WHERE THE TIME GOES" in result.stdout and "prog.py:4" in result.stdout
    kept = from_json(Diagnosis, Path("kernelworks-out/prog-step.json").read_text(encoding="utf-8"))
    assert kept.interrupted and "nterrupted" in page.diagnosis(kept)


@pytest.mark.parametrize("found", [None, "tried"])
def test_an_interrupted_fix_is_kept_and_not_refused(
    found: str | None, diagnosis: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = (
        TriedOptimization("swap", "m", "", "", "rejected", "wrong"),
        TriedOptimization("threads", "m", "", "", "not tried", NOT_OVER, needs_s=480.0),
    )
    so_far = fix_record(0.4, 0.4, optimizations=tried, needs_s=480.0) if found else None

    def stopped(request: object, progress: supervisor.Progress, say: object) -> None:
        progress.diagnosis, progress.fix = dataclasses.replace(diagnosis, fix=None), so_far
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor, "_supervised", stopped)
    monkeypatch.chdir(tmp_path)
    Path("prog.py").write_text("def step():\n    pass\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["diagnose", "prog.py:step", "--fix", "--budget", "30", "--out", "out"])
    assert result.exit_code == 130 and "refused" not in result.output
    said = " ".join(result.stdout.partition("RESULT")[2].partition("WHERE")[0].split())
    assert said.startswith("Interrupted, so this is what was measured until then. No optimization applied: it was ")
    assert ("1 rejected, 1 not tried" in said) == bool(found) and "none applies" not in said
    assert "kernelworks diagnose prog.py:step --fix --budget 30" in said and "480" not in said
    kept = from_json(Diagnosis, Path("out/prog-step.json").read_text(encoding="utf-8"))
    assert kept.interrupted and kept.fix is not None and not kept.fix.refused
    assert "Interrupted, so this is what was measured" in page.diagnosis(kept)
