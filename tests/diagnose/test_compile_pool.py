"""Compilers beside a fix, by their pool: halted as a whole, ended as a whole; each of them costs its own form alone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelworks.diagnose.fix import compile_pool
from kernelworks.diagnose.fix.compile_forms import FORM_FAILED, FORM_READY
from kernelworks.diagnose.fix.compile_pool import CompilePool, compilers_at_once
from kernelworks.machine.process_tree import ProcessTree

SUPPORT = Path(__file__).parents[1] / "support"
NEEDS = {
    "kind": "compilers", "backward": False, "bytes_each": 1, "gpu_bytes_each": 0, "gpu_bytes_free": 0, "keeps": True,
    "wall_s": 0.0,
}  # fmt: skip


class Told(list[dict[str, Any]]):
    """What the search is told."""

    def states(self) -> dict[str, str]:
        return {message["key"]: message["state"] for message in self if message["kind"] == "form"}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CompilePool, Told]]:
    monkeypatch.setattr(compile_pool, "MODULE", "compile_stub")
    monkeypatch.setattr(compile_pool, "LETS_GO_S", 0.0)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    told, made = Told(), CompilePool({"target": "p.py:f"}, 3, lambda: 0.0)
    made.tell = told.append
    made.hears(NEEDS)
    try:
        yield made, told
    finally:
        made.close()


def ask(pool: CompilePool, *keys: str) -> None:
    for key in keys:
        pool.hears({"kind": "compile", "key": key, "says": key, "batch": 0})
    pool.hears({"kind": "go on"})


def until(pool: CompilePool, holds: Callable[[], bool]) -> None:
    """However long it takes here."""
    while not holds():
        pool.look()
        time.sleep(0.01)


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def busy(pool: CompilePool) -> list[int]:
    """The processes of a form that works, once it has started all of its own."""
    until(pool, lambda: len(pool._tree.members()) >= 3 * len(pool.running) > 0)
    return pool._tree.members()


def test_what_is_compiled_is_told_with_its_seconds_and_leaves_nobody(pool: tuple[CompilePool, Told]) -> None:
    beside, told = pool
    ask(beside, "leaves")
    until(beside, lambda: bool(told.states()))
    assert told == [{"kind": "form", "key": "leaves", "state": FORM_READY, "loads_s": 2.0, "cold_s": 40.0}]
    assert not beside.running and all(state_of(pid) in "ZX" for pid in beside._tree.members())
    ask(beside, "leaves")  # another worker of the search asks again
    assert len(told) == 2 and told[1]["state"] == FORM_READY
    assert [step.what for step in beside.steps] == ["compiling: leaves", "compiled in 40 s: leaves"]


def test_each_fault_costs_its_own_form_and_says_why(
    pool: tuple[CompilePool, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, told = pool
    monkeypatch.setattr(compile_pool, "REST_S", 0.3)
    monkeypatch.setattr(compile_pool, "LOOK_S", 0.1)
    whys = {
        "hangs": "it hung", "aborts": "its process ended with -6", "disk": "No space left on device",
        "refuses": "RuntimeError: it cannot", "babbles": "",
    }  # fmt: skip
    ask(beside, *whys, "compiles")
    until(beside, lambda: len(told.states()) == len(whys) + 1)
    assert told.states() == {**dict.fromkeys(whys, FORM_FAILED), "compiles": FORM_READY}
    assert all(why in beside.forms[key].why for key, why in whys.items())
    assert "1 of 6 forms compiled" in beside.note()


def test_one_that_is_killed_or_too_large_costs_itself(
    pool: tuple[CompilePool, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, told = pool
    ask(beside, "works 1", "works 2")
    busy(beside)
    beside.forms["works 1"].process.kill()  # type: ignore[union-attr]
    until(beside, lambda: "works 1" in told.states())
    assert [form.key for form in beside.running] == ["works 2"]
    monkeypatch.setattr(compile_pool, "available_bytes", lambda: 1)
    until(beside, lambda: "works 2" in told.states())
    assert "memory was short" in beside.forms["works 2"].why
    assert all(state_of(pid) in "ZX" for pid in beside._tree.members())


def test_all_that_they_have_started_stands_while_something_is_timed(pool: tuple[CompilePool, Told]) -> None:
    beside, told = pool
    ask(beside, "works 1", "works 2")
    every = busy(beside)
    assert len(every) == 6
    beside.hears({"kind": "halt"})
    assert told[-1] == {"kind": "halted", "worked": True}
    assert {state_of(pid) for pid in every} == {"T"}
    ask(beside, "later")  # it is not begun while they stand, or before it was said
    beside.hears({"kind": "halt"})
    beside.look()
    assert told[-1] == {"kind": "halted", "worked": False} and len(beside.running) == 2
    beside.hears({"kind": "go on"})
    beside.look()
    assert "T" not in {state_of(pid) for pid in every} and len(beside.running) == 3


def test_what_is_soon_timed_again_lets_nobody_go_on(
    pool: tuple[CompilePool, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, told = pool
    ask(beside, "works")
    every = busy(beside)
    monkeypatch.setattr(compile_pool, "LETS_GO_S", 1e9)
    beside.hears({"kind": "halt"})
    beside.hears({"kind": "go on"})
    beside.look()
    assert {state_of(pid) for pid in every} == {"T"}
    beside.hears({"kind": "halt"})
    assert told[-1] == {"kind": "halted", "worked": False}


def test_a_search_that_waits_for_what_stands_is_set_free(
    pool: tuple[CompilePool, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold a lock of inductor's: what is heard of the search begins the time anew."""
    beside, told = pool
    ask(beside, "works")
    busy(beside)
    beside.hears({"kind": "halt"})
    beside.look()
    assert beside.running
    beside.standing_s = 0.0
    until(beside, lambda: not beside.running)
    assert told.states() == {"works": FORM_FAILED} and "may have waited" in beside.forms["works"].why


def test_a_search_that_does_nothing_is_set_free_sooner(pool: tuple[CompilePool, Told]) -> None:
    beside, _ = pool
    ask(beside, "works")
    busy(beside)
    beside.look(rested_s=1000.0)
    assert beside.running and beside.is_at_work  # they hold nothing for long
    beside.hears({"kind": "halt"})
    assert not beside.is_at_work
    beside.look(rested_s=1.0)
    assert beside.running
    beside.look(rested_s=30.0)
    assert not beside.running


def test_no_memory_and_no_cache_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for more, why in (({"bytes_each": 1 << 60}, "memory"), ({"keeps": False}, "caches are off"),
                      ({"gpu_bytes_each": 10, "gpu_bytes_free": 15}, "memory")):  # fmt: skip
        told, made = Told(), CompilePool({}, 3, lambda: 0.0)
        made.tell = told.append
        made.hears({**NEEDS, **more})
        ask(made, "form")
        made.look()
        assert told.states() == {"form": FORM_FAILED} and why in made.steps[0].what and not made.note()


def test_how_many_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for cores in (1.0, 2.0, 3.9, 4.0, 8.0, 16.0, 128.0):
        monkeypatch.setattr(compile_pool, "usable_cores", lambda cores=cores: cores)
        found[cores] = compilers_at_once()
    assert found == {1.0: 0, 2.0: 0, 3.9: 0, 4.0: 1, 8.0: 2, 16.0: 4, 128.0: 6}


def test_a_mark_without_a_value_would_be_everybodys() -> None:
    for mark in ("", "NAME", "NAME="):
        with pytest.raises(ValueError, match="NAME=value"):
            ProcessTree(mark, list)


SUPERVISOR = """
import sys, time
from kernelworks.diagnose.fix import compile_pool
compile_pool.MODULE, compile_pool.LETS_GO_S = "compile_stub_that_dies", 0.0
pool = compile_pool.CompilePool({"target": ""}, 2, lambda: 0.0)
pool.hears(NEEDS)
pool.hears({"kind": "compile", "key": "works", "says": "", "batch": 0})
pool.hears({"kind": "go on"})
while len(pool._tree.members()) < 2:
    pool.look()
    time.sleep(0.01)
if sys.argv[1] == "halted":
    pool.hears({"kind": "halt"})
print(*pool._tree.members(), flush=True)
time.sleep(600)
"""
DIES = """
import signal, subprocess, sys
from kernelworks.machine.parent_process import die_with_parent
die_with_parent()
signal.signal(signal.SIGHUP, signal.SIG_DFL)
watches = "import os\\nwhile os.getppid() == {}: pass"  # as inductor's processes watch who started them
import os
subprocess.Popen([sys.executable, "-c", watches.format(os.getpid())])
while True:
    pass
"""


@pytest.mark.parametrize("how", ["halted", pytest.param("working", marks=pytest.mark.thorough)])
def test_nobody_outlives_a_supervisor_that_is_killed(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compile_stub_that_dies.py").write_text(DIES)
    source = str(Path(compile_pool.__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{source}")
    command = [sys.executable, "-c", SUPERVISOR.replace("NEEDS", repr(NEEDS)), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        every = [int(pid) for pid in supervisor.stdout.readline().split()]
        assert len(every) >= 2
        supervisor.kill()
    while not all(state_of(pid) in "ZX" for pid in every):
        time.sleep(0.02)
