"""The C++ entry built in the background: by whom, once a machine, never half, and not for ever if it fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from compilers import compiler

from kernelworks.build import background, native
from kernelworks.build.cache import FAILURE_SUFFIX, forget_failures

# A process that calls ops until it is told what it waits for, and then says how calls go. The moments are brought
# nearer, so that no test waits for them.
CALLS = """
import json, os, sys, time, torch
import kernelworks as kw
from kernelworks.build import background, native
from kernelworks.dispatch import adoption
from kernelworks.dispatch.op import OPS
adoption.SETTLED_S, adoption.POLL_S, background.NICE = 0.1, 0.1, 1  # at 19 a loaded machine takes minutes
x, entry, end = torch.randn(3, 8), OPS["gelu"].entry, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and not entry.in_cpp:
    y = kw.gelu(x)
    time.sleep(0.01)
right = torch.equal(kw.gelu(x), torch.nn.functional.gelu(x))
print(json.dumps([right, entry.in_cpp, OPS["softmax"].entry.in_cpp, "torch._dynamo" in sys.modules]))
"""


@pytest.fixture(scope="module")
def built() -> Path:
    """The extension of this machine's cache."""
    assert native.find_extension() is not None, native.fallback_reason()
    return Path(str(native.find_extension().__file__))  # type: ignore[union-attr]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which processes may build."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELWORKS_NATIVE", "background")
    return tmp_path / "cache" / "build"


def started(seconds: float, code: str = CALLS) -> subprocess.Popen[str]:
    """A process that has torch and the package, and has called nothing."""
    python = forked.interpreter(("torch", "kernelworks", "kernelworks.build.background"))
    return subprocess.Popen([python, "-c", code, str(seconds)], stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[bool]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    found: list[bool] = json.loads(out)
    return found


def wait_for(what: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def quick(folder: Path, built: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> Path:
    """A compiler that makes the extension at once; the file that it notes its runs in."""
    command, log = compiler(folder, f'case "$out" in *native*) {before} cp {built} "$out";; esac')
    monkeypatch.setenv("KERNELWORKS_CXX", command)
    return log


def test_processes_at_once_build_it_once_and_take_it_into_use(
    built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = quick(tmp_path, built, monkeypatch)
    for process in [started(240.0), started(240.0)]:
        assert said(process) == [True, True, False, False]  # softmax was never called; nothing imported Dynamo
    assert len(log.read_text().splitlines()) == 1
    assert not list(cache.glob(f"*{FAILURE_SUFFIX}")) and not list(cache.glob(".building-*"))


def test_a_later_process_has_it_at_its_first_call(
    built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(tmp_path, built, monkeypatch)
    assert said(started(240.0))[1]
    first = "import kernelworks as kw, torch; from kernelworks.dispatch.op import OPS; import json, sys\n"
    first += "kw.gelu(torch.randn(3, 8)); print(json.dumps([OPS['gelu'].entry.in_cpp, 'torch._dynamo' in sys.modules]))"
    assert said(started(0.0, first)) == [True, False]


def test_a_process_that_calls_an_op_once_starts_no_compiler(
    built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = quick(tmp_path, built, monkeypatch)
    once = CALLS.split("while")[0] + "kw.gelu(x)\ntime.sleep(2.0)\nprint(json.dumps([entry.in_cpp]))"
    assert said(started(0.0, once)) == [False]
    assert not list(cache.glob(f"*{FAILURE_SUFFIX}")) and not log.read_text()


def test_a_build_that_is_killed_leaves_nothing_and_is_not_tried_at_once(
    built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = quick(tmp_path, built, monkeypatch, before=f'echo half > "$out"; echo $PPID > {tmp_path}/builder; sleep 600;')
    process = started(3600.0)
    builder = tmp_path / "builder"
    wait_for(lambda: builder.is_file() and bool(builder.read_text().strip()))
    pid = int(builder.read_text())
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 1 and background.NICE == 19
    assert os.getsid(pid) != os.getsid(process.pid) and background.is_running()
    process.kill()  # the build goes on without who asked for it
    process.communicate()
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)
    for compiling in _children_of(tmp_path):
        os.kill(compiling, signal.SIGKILL)
    wait_for(lambda: not background.is_running())
    assert not list(cache.glob("native*.so")) and not native.find_extension(again=True)
    log.write_text("")
    assert said(started(4.0)) == [True, False, False, False]
    assert not log.read_text()
    (note,) = cache.glob(f"*{FAILURE_SUFFIX}")
    held = json.loads(note.read_text())
    assert held["attempts"] == 1
    quick(tmp_path, built, monkeypatch)
    note.write_text(json.dumps({**held, "when": held["when"] - 2 * background.FIRST_RETRY_S}))
    assert said(started(240.0))[1]  # when its time has come, it is
    assert not list(cache.glob(".building-*")) and not list(cache.glob(f"*{FAILURE_SUFFIX}"))


def _children_of(folder: Path) -> list[int]:
    """The processes of this test's compiler, which a killed build leaves."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def test_the_wait_doubles_up_to_a_day(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    note = cache / f"x{FAILURE_SUFFIX}"
    waits = []
    for attempts in (1, 2, 3, 40):
        waits.append(
            next(
                s
                for s in (600, 1200, 2400, 4800, 86400)
                if not note.write_text(json.dumps({"attempts": attempts, "when": time.time() - s - 1}))
                or background._due(note)
            )
        )
    assert waits == [600, 1200, 2400, 86400]
    forget_failures()
    assert not note.exists()


FAULTS = {
    "no compiler": "no-such-g++",
    "fails": "exit 1",
    "writes junk": 'echo junk > "$out"',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_built_is_tried_once(
    fault: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, log = (FAULTS[fault], None) if fault == "no compiler" else compiler(tmp_path, FAULTS[fault])
    monkeypatch.setenv("KERNELWORKS_CXX", command)
    process = started(3600.0)
    if log is not None:
        wait_for(lambda: len(list(cache.glob(f"*{FAILURE_SUFFIX}"))) > 1 and not background.is_running())
        before = log.read_text()
    process.kill()
    process.communicate()
    assert said(started(2.0)) == [True, False, False, False]
    assert not list(cache.glob("native*.so"))
    assert log is None or log.read_text() == before


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("KERNELWORKS_CACHE", str(file))
    monkeypatch.setenv("KERNELWORKS_NATIVE", "background")
    command, log = compiler(tmp_path, "exit 1")
    monkeypatch.setenv("KERNELWORKS_CXX", command)
    assert said(started(2.0)) == [True, False, False, False]
    assert not log.read_text()


def test_an_entry_of_other_sources_is_none_of_this(
    built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True)
    for name in ("native-0123456789abcdef0123.so", "native-0123456789abcdef0123.json"):
        (cache / name).write_text("{}")
    quick(tmp_path, built, monkeypatch)
    assert said(started(240.0))[1]
    assert len(list(cache.glob("native*.so"))) == 2


# ---------------------------------------------------------------- who has nothing built


def test_while_something_is_measured_nothing_is_built(
    built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = quick(tmp_path, built, monkeypatch)
    with background.measuring():
        assert background.reason_against() == "a measurement runs"
        assert said(started(4.0)) == [True, False, False, False]
        assert not log.read_text()
    assert said(started(240.0))[1]


def test_a_measurement_waits_for_a_build(cache: Path) -> None:
    cache.mkdir(parents=True)
    hold = (
        f"import fcntl, sys, time; f = open({str(cache / background.MEASURING)!r}, 'a'); fcntl.flock(f, fcntl.LOCK_EX)"
    )
    hold += "; print('held', flush=True); time.sleep(0.5)"
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with background.measuring(lines.append):
            assert other.poll() is not None or not background.is_running()
    assert lines and all(re.search(r"background, \d+ s of at most \d+ s$", line) for line in lines)


def test_a_measurement_waits_no_longer_than_it_says(cache: Path) -> None:
    """A build at the lowest priority may not end while others hold the cores."""
    cache.mkdir(parents=True)
    hold = f"import fcntl, sys; f = open({str(cache / background.MEASURING)!r}, 'a'); fcntl.flock(f, fcntl.LOCK_EX)"
    hold += "; print('held', flush=True); sys.stdin.read()"
    lines: list[str] = []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold], text=True, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "held\n"
        with background.measuring(lines.append, most_s=0.5):
            assert background.is_running() and other.poll() is None
        other.stdin.close()
    assert lines[0].endswith(", 0 s of at most 0 s") and len(lines) > 1


WHO = """
import os, sys, multiprocessing
import torch
from kernelworks.build import background, native

def say():
    print(background.reason_against(), flush=True)

if __name__ == "__main__":
    say()
    native.find_extension()
    background.watch_forks()
    if not os.fork():
        say()
        os._exit(0)
    os.wait()
    worker = multiprocessing.get_context("fork").Process(target=say)
    worker.start(); worker.join()
    import kernelworks.cli
    say()
"""


def test_who_has_nothing_built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST")}
    done = subprocess.run([sys.executable, "-c", WHO], env=env, capture_output=True, text=True, check=True)
    worker = "a worker process builds nothing"
    assert done.stdout.splitlines() == ["", worker, worker, "a verb, or a worker of one, runs here"]
    monkeypatch.delenv("KERNELWORKS_NATIVE")
    monkeypatch.delitem(sys.modules, "kernelworks.cli", raising=False)  # which another test may have imported
    assert background.reason_against() == "tests build nothing"
    for value in ("build", "found", "0"):
        monkeypatch.setenv("KERNELWORKS_NATIVE", value)
        assert value in background.reason_against()
