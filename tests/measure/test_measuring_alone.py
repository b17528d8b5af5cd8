"""One measurement at a time: the second process waits and says so; a dead holder's lock is free."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import kernelworks as kw
from kernelworks.judge.formats import read_problem
from kernelworks.judge.session import Sitting
from kernelworks.measure.clock import turns
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.measure.peaks import cache as cache_of_peaks
from kernelworks.records import Peaks

HOLDER = """
import sys
from kernelworks.measure.clock.turns import measuring_alone

with measuring_alone(lambda line: print(line, flush=True)):
    print("measuring", flush=True)
    {then}
    sys.stdin.readline()
print("over", flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def holder(then: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.replace("{then}", then)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "measuring\n"
    return process


def test_the_second_waits_visibly_until_the_first_is_done() -> None:
    first, told, noticed = holder(), list[str](), list[str]()
    done = threading.Event()

    def say(line: str) -> None:
        told.append(line)
        if len(told) == 2 and first.poll() is None:
            assert not done.is_set()
            first.communicate("\n", timeout=60)

    with measuring_alone(say, noticed.append):
        done.set()
        assert first.returncode == 0
    assert len(noticed) == 1 and f"waiting for another measurement of kernelworks, pid {first.pid}, since" in noticed[0]
    assert all(f"pid {first.pid}, since" in line for line in told)
    assert (Path(os.environ["KERNELWORKS_CACHE"]) / "locks" / "measuring").read_text() == ""


def test_a_dead_holders_lock_is_free_even_if_a_fork_of_it_lives(cache: Path) -> None:
    first = holder(
        'import os, time\n    if not os.fork():\n        print("forked", flush=True)\n        time.sleep(600)'
    )
    assert first.stdout is not None and first.stdout.readline() == "forked\n"  # a fork lets go of the lock as it begins
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    first.send_signal(signal.SIGKILL)
    first.wait()
    try:
        noticed: list[str] = []
        with measuring_alone(noticed.append, most_s=60):
            pass
        assert not noticed
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)


def test_after_a_while_it_goes_on_all_the_same() -> None:
    first, noticed = holder(), list[str]()
    with measuring_alone(lambda line: None, noticed.append, most_s=0.0):
        assert first.poll() is None
    assert (len(noticed) == 2 and "not waiting any longer" in noticed[1]) or "not waiting any longer" in noticed[0]
    first.communicate("\n", timeout=60)


def test_a_process_that_a_holder_started_does_not_wait() -> None:
    inner = HOLDER.replace("{then}", "").replace("sys.stdin.readline()", "pass")
    told: list[str] = []
    with measuring_alone(told.append):
        done = subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True, timeout=120)
        assert done.stdout == "measuring\nover\n", done.stderr
        with measuring_alone(told.append):  # nor does a measurement inside another one
            pass
    assert not told


def test_ranks_of_one_program_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first, told = holder(), list[str]()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with measuring_alone(told.append):
        assert first.poll() is None and not told
    first.communicate("\n", timeout=60)


def test_a_cache_that_cannot_be_written_keeps_nobody_from_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "file"))
    with measuring_alone(lambda line: None):
        assert not turns._held


# ---------------------------------------------------------------- who takes the lock


def waits(begin: Callable[[Callable[[str], None]], object]) -> None:
    """Whether what ``begin`` starts waits for another process that measures, and says so."""
    first, told = holder(), list[str]()

    def say(line: str, *more: object) -> None:
        told.append(line)
        if "waiting for another measurement" in line and first.poll() is None:
            first.communicate("\n", timeout=60)

    begin(say)
    assert any(f"pid {first.pid}, since" in line for line in told), told
    assert first.returncode == 0


def test_a_judge_waits_where_it_takes_times() -> None:
    def sit(say: Callable[[str], None]) -> None:
        sitting = Sitting(read_problem("softmax"), progress=say)
        with sitting._alone():
            assert turns._held and turns._depth == 1

    waits(sit)


def test_turns_of_a_judges_host_come_first() -> None:
    inside: list[int] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        inside.append(turns._depth)
        yield

    with Sitting(read_problem("softmax"), alone=turn)._alone():
        assert turns._depth == 1
    assert inside == [0]


@pytest.mark.parametrize("how", [{}, {"brief": True}, {"rough": True}, {"again": True}], ids=str)
def test_whoever_measures_peaks_waits(how: dict[str, bool], ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(progress: object = None, **more: object) -> Peaks:
        assert turns._depth == 1
        return ceilings

    monkeypatch.setattr(cache_of_peaks, "measure", measure)
    waits(lambda say: cache_of_peaks.get_peaks(say, **how))


def test_a_diagnosis_and_an_autotuning_wait(ceilings: Peaks) -> None:
    x = torch.ones(8, 8)
    waits(lambda say: kw.diagnose(lambda: x + x, peaks=ceilings, budget_s=0.3, progress=say))
    waits(lambda say: kw.autotune(lambda: x + x, progress=say))


def test_known_peaks_wait_for_nobody(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_of_peaks, "cached_peaks", lambda device: ceilings)
    first = holder()
    assert cache_of_peaks.get_peaks(lambda *told: pytest.fail("told")) is ceilings
    first.communicate("\n", timeout=60)


def test_processes_with_other_gpus_measure_side_by_side_and_one_with_all_devices_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first, told = holder(), list[str]()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with measuring_alone(told.append, most_s=60):
        assert first.poll() is None and not told
    for gpus in ("0", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        with measuring_alone(told.append, most_s=0.5):
            assert f"pid {first.pid}, since" in told[0] and "not waiting any longer" in told[-1]
        told.clear()
    first.communicate("\n", timeout=60)
