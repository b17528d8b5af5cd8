"""What our calls need is built beside a fix from its start: it stands while something is timed, whoever waits for it
sets it free, and it ends with the fix."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelworks.build import cuda, native
from kernelworks.build.cache import BuildError, entry
from kernelworks.diagnose.fix import build_worker, builds_beside
from kernelworks.diagnose.fix.compile_pool import CompilePool
from kernelworks.machine.process_state import process_state
from kernelworks.measure.clock.work_beside import WorkBeside, installed_work

SUPPORT = Path(__file__).parents[1] / "support"
SOURCE = str(Path(native.__file__).parents[2])


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilePool]:
    monkeypatch.setattr(builds_beside, "MODULE", "build_stub")
    monkeypatch.setattr(builds_beside, "_is_wanted", lambda: True)
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}:{SOURCE}")
    with contextlib.closing(CompilePool({"target": "p.py:f"}, 3, lambda: 0.0)) as made:
        yield made


def until(pool: CompilePool, holds: Callable[[], bool]) -> None:
    """However long it takes here."""
    while not holds():
        pool.look()
        time.sleep(0.01)


def said(pool: CompilePool) -> list[str]:
    return [step.what for step in pool.steps if step.beside]


def test_what_was_built_is_said(pool: CompilePool) -> None:
    pool.build()
    until(pool, lambda: not pool.builds.is_running)
    assert said(pool) == [builds_beside.BUILDING, "built: the first, the second"]
    assert pool.note() == ""  # it is no compiler of a form


def test_it_stands_while_something_is_timed_and_ends_with_the_fix(
    pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    pool.tell = told.append
    monkeypatch.setenv("STUB", "works")
    pool.build()
    until(pool, lambda: len(pool._tree.members()) >= 2)
    every = pool._tree.members()
    pool.hears({"kind": "halt"})
    assert told == [{"kind": "halted", "worked": False}]  # it is not on the device: nobody waits until that is done
    assert {process_state(pid).state for pid in every} == {"T"}  # type: ignore[union-attr]
    pool.hears({"kind": "go on"})
    until(pool, lambda: not any(process_state(pid).state == "T" for pid in every))  # type: ignore[union-attr]
    pool.hears({"kind": "halt"})
    pool.close()
    assert all(found is None or found.state in "ZX" for found in map(process_state, every))
    assert said(pool)[1:] == ["built: the first"]


def test_without_cores_for_it_nothing_is_built(pool: CompilePool) -> None:
    pool.number = 0
    pool.build()
    assert not pool.builds.is_running and not pool.steps


@pytest.mark.parametrize(
    ("asked", "entry_absent", "gpus", "cubin_absent", "wanted"),
    [
        ("build", True, 0, True, True),
        ("build", False, 0, True, False),  # without a GPU nothing of CUDA's is needed
        ("build", False, 1, True, True),
        ("build", False, 1, False, False),
        ("found", True, 1, True, False),
        ("0", True, 1, True, False),
        ("", True, 1, True, False),  # tests that do not ask for it build nothing
        ("build", None, 1, True, False),  # no compiler
    ],
)
def test_it_begins_only_if_something_is_missing(
    asked: str, entry_absent: bool | None, gpus: int, cubin_absent: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> bool:
        if entry_absent is None:
            raise BuildError("no compiler")
        return entry_absent

    monkeypatch.setenv("KERNELWORKS_NATIVE", asked)
    monkeypatch.setattr(native, "is_absent", absent)
    monkeypatch.setattr(builds_beside.torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(cuda, "is_absent", lambda source: cubin_absent)
    assert builds_beside._is_wanted() == wanted


def test_every_build_is_tried_and_one_that_fails_costs_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise BuildError("it does not compile")

    builds = [("a", object), ("b", fails), ("c", lambda: None), ("d", object)]
    monkeypatch.setattr(build_worker, "_builds", lambda: iter(builds))
    for name in ("die_with_parent",):
        monkeypatch.setattr(build_worker, name, lambda: None)
    monkeypatch.setattr(build_worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(build_worker.os, "nice", lambda _: None)
    build_worker.main()
    assert capsys.readouterr().out == "a\nd\n"


def test_every_cuda_source_is_one_of_them() -> None:
    sources = build_worker.cuda_sources()
    assert sources and all(source.suffix == ".cu" and source.is_file() for source in sources)


def test_who_waits_for_an_entry_lets_its_builder_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the entry's lock, and stands while something is timed."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    begun, may_work, made = threading.Event(), threading.Event(), list[str]()

    def build(name: str, path: Path) -> None:
        made.append(name)
        begun.set()
        assert may_work.wait(60.0)
        path.write_text("whole")

    def builder() -> None:
        entry("stem", ".so", lambda path: build("beside", path), {})

    other = threading.Thread(target=builder)
    other.start()
    assert begun.wait(60.0)
    with installed_work(WorkBeside(may_work.clear, may_work.set)):
        assert entry("stem", ".so", lambda path: build("here", path), {}).read_text() == "whole"
    assert not may_work.is_set() and made == ["beside"]
    other.join()
