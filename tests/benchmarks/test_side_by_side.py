"""Processes side by side: whichever is ready is timed while the others are halted, and none is left behind."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LONG_S = 60.0  # which nothing here takes

# A process in its folder: by its name how it prepares, by its mode how it is timed. NOTES is where all of them can see.
TOY = """
import json, os, pathlib, subprocess, sys, time
name, mode, notes = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
halted = pathlib.Path("halted_s.txt")
clock = "import sys, time\\nwhile True: print(time.monotonic(), file=open(sys.argv[1], 'a')); time.sleep(0.002)"
tell = lambda **found: json.dump(found, open("result.json", "w"))
until = lambda file: [time.sleep(0.002) for _ in iter(file.exists, True)]
if name == "dies":
    sys.stderr.write("out of luck\\n")
    os._exit(9)
if name == "greedy" and not (notes / "tried").exists():
    (notes / "tried").write_text("")
    said = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    tell(**({"part": {"failed": said}} if mode == "a part" else {"failed": said}))
    sys.exit()
if name == "works":
    worker = subprocess.Popen([sys.executable, "-c", clock, notes / "worker"])
    (notes / "pids").write_text(f"{os.getpid()} {worker.pid}")
    until(notes / "worker")
    (notes / "at work").write_text("")
    while not (halted if mode == "until halted" else notes / "told").exists():
        print(time.monotonic(), file=open(notes / "itself", "a"))
        time.sleep(0.002)
if name == "waits":
    until(notes / "at work")
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
if mode == "hangs":
    (notes / "timing").write_text("")
    sys.stdin.read()  # until nobody is left
if name == "waits":
    time.sleep(0.3)
tell(begin=begin, end=time.monotonic(), halted_s=float(halted.read_text()) if halted.exists() else 0.0)
"""


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("side_by_side")


class Toys:
    """Starts toys, and keeps what is told of them."""

    def __init__(self, beside: ModuleType, folder: Path) -> None:
        self.beside, self.folder, self.limit = beside, folder, LONG_S
        self.notes, self.told, self.started = folder / "notes", {}, list[Any]()
        self.notes.mkdir()
        (folder / "toy.py").write_text(TOY)

    def start(self, task: tuple[str, str], heard: Any) -> Any:
        own = self.folder / f"{len(self.started)}"
        own.mkdir()
        command = [sys.executable, str(self.folder / "toy.py"), *task, str(self.notes)]
        self.started.append(self.beside.Started(command, own, self.limit, heard=heard))
        return self.started[-1]

    def tell(self, task: tuple[str, str], entry: Any) -> None:
        self.told[task[0]] = entry

    def run(self, *tasks: tuple[str, str], together: int = 2, for_s: float = 10 * LONG_S, tell: Any = None) -> None:
        end = time.monotonic() + for_s
        self.beside.side_by_side(tasks, self.start, end=end, together=together, tell=tell or self.tell)

    def ticks(self, of: str) -> list[float]:
        return [float(line) for line in (self.notes / of).read_text().splitlines() if line]

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.notes / "pids").read_text().split()]


@pytest.fixture
def toys(beside: ModuleType, tmp_path: Path) -> Toys:
    return Toys(beside, tmp_path)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def comes_true(holds: Callable[[], bool]) -> bool:
    last = time.monotonic() + LONG_S
    while not holds():
        if time.monotonic() > last:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("of", ["", "a part"])  # all of a process, or a part of what it does, for want of memory
def test_one_that_takes_long_holds_up_nothing_but_itself_and_stands_still_while_others_are_timed(
    toys: Toys, of: str
) -> None:
    def tell(task: tuple[str, str], entry: Any) -> None:
        toys.tell(task, entry)
        if len(toys.told) == 4:  # all others: only now it gets ready
            (toys.notes / "told").write_text("")

    toys.run(("works", ""), ("dies", ""), ("waits", ""), ("quick", ""), ("greedy", of), ("last", ""), tell=tell)
    assert list(toys.told) == ["dies", "waits", "quick", "last", "works", "greedy"]
    assert toys.told["dies"] == {"failed": "ended without a word: out of luck"}
    assert "failed" not in toys.told["greedy"], "what had no memory beside others has another turn, alone"
    begin, end = toys.told["waits"]["begin"], toys.told["waits"]["end"]
    for of in ("itself", "worker"):
        ticks = toys.ticks(of)
        assert [t for t in ticks if begin < t < end] == [], f"{of}: at work while another is timed"
        assert ticks[0] < begin and ticks[-1] > end, f"{of}: goes on"
    assert toys.told["works"]["halted_s"] >= end - begin
    assert toys.told["waits"]["halted_s"] == toys.told["greedy"]["halted_s"] == 0
    assert comes_true(lambda: all(map(gone, toys.pids())))


def test_a_halted_process_has_its_time_later(toys: Toys, beside: ModuleType) -> None:
    toys.limit = 1.0
    process = toys.start(("works", ""), None)
    before = process.deadline
    process.halt()
    time.sleep(0.05)
    process.go_on()
    process.go_on()  # of one that is not halted: nothing
    later = process.deadline - before
    process.end()
    process.end()
    assert 0.05 <= later < LONG_S and float((process.folder / beside.HALTED).read_text()) == pytest.approx(later)
    assert process.ended.wait(LONG_S) and gone(process.process.pid)


def test_what_takes_too_long_is_an_entry_and_what_was_cut_off_is_none(
    toys: Toys, beside: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.limit = 0.2
    toys.run(("works", ""))
    assert toys.told == {"works": {"failed": "took more than 0 s"}}
    toys.limit = LONG_S
    toys.run(("works", ""), ("quick", ""), for_s=beside.LEAST_S / 2)
    assert toys.told == {"works": None, "quick": None} and len(toys.started) == 1, "no time to begin"
    monkeypatch.setattr(beside, "LEAST_S", 0.0)
    toys.run(("works", ""), ("waits", "hangs"), ("quick", ""), for_s=1.0)
    assert toys.told == {"works": None, "waits": None, "quick": None}
    assert all(gone(process.process.pid) for process in toys.started)


def test_who_is_not_timed_while_others_stand_still_has_another_turn_alone(
    toys: Toys, beside: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "STANDING_S", 0.05)
    toys.run(("works", "until halted"), ("waits", ""))
    assert list(toys.told) == ["works", "waits"]
    assert not any("failed" in found for found in toys.told.values())
    assert len(toys.started) == 3, "0.3 s were more than the others stand still"


def test_an_exception_leaves_nothing_running_that_is_halted(toys: Toys) -> None:
    def tell(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toys.run(("works", ""), ("waits", ""), tell=tell)
    assert comes_true(lambda: all(map(gone, toys.pids())))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_nothing_running_that_is_halted(toys: Toys, number: signal.Signals) -> None:
    code = (
        "import sys, pathlib; sys.path[:0] = sys.argv[1:3]\n"
        "import side_by_side, test_side_by_side as here\n"
        "side_by_side.end_on_sigterm()\n"
        "here.Toys(side_by_side, pathlib.Path(sys.argv[3])).run(('works', ''), ('waits', 'hangs'))\n"
    )
    folder = toys.folder / "its"
    folder.mkdir()
    paths = [str(BENCHMARKS), str(Path(__file__).parent), str(folder)]
    with subprocess.Popen([sys.executable, "-c", code, *paths]) as process:
        try:
            assert comes_true((folder / "notes/timing").exists)
            pids = [int(pid) for pid in (folder / "notes/pids").read_text().split()]
            states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
            assert states == ["T", "T"], "halted"
        finally:
            process.send_signal(number)
    assert process.returncode in (-number, 128 + number)
    assert comes_true(lambda: all(map(gone, pids)))


def test_the_record_of_a_process_is_read_as_it_left_it(toys: Toys, beside: ModuleType) -> None:
    toys.run(("quick", ""), together=1)
    process = toys.started[0]
    assert json.loads((process.folder / beside.RESULT).read_text()) == toys.told["quick"]
    assert process.all_said() == "ready\n"
