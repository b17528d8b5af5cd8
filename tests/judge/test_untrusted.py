"""What comes from a candidate's process, and what it leaves, ends nothing but itself: words, memory, folders."""

from __future__ import annotations

import ctypes
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelworks.judge.cores_taken import count_off_clock, remark_cores
from kernelworks.judge.formats.text import parse_module
from kernelworks.judge.problem import Misread
from kernelworks.judge.process.cleanup import remove_folder
from kernelworks.judge.process.ipc import Memory, pair, say
from kernelworks.judge.process.pool import ChildProcess, Nursery, ProcessEnded
from kernelworks.judge.process.sanitise import lines, sanitize_text, seconds, words
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import Answer, VariantProcess
from kernelworks.judge.trial_result import TrialResult
from kernelworks.judge.unannounced_questions import AT_ONCE, MOST_AT_ONCE, charge_end, take_at_its_word


def test_words_are_short_texts_that_can_be_shown() -> None:
    assert sanitize_text("\x1b[2J\ud800\u202e") == "\\x1b[2J\\ud800\\u202e" and sanitize_text("a\nb\tc") == "a\nb\tc"
    assert (
        len(sanitize_text("x" * 10**6)) < 10**4
        and sanitize_text(7) == sanitize_text(None) == sanitize_text(["a"]) == ""
    )
    assert lines(["a", 1, None, "b\x07"]) == ["a", "b\\x07"] and lines("ab") == lines(None) == []
    assert len(lines(["a"] * 10**4)) < 10**3 and words({"a": 1}) == {"a": 1} and words([1]) == words("a") == {}
    assert [seconds(v) for v in (0.5, -1.0, float("inf"), float("nan"), "1", None, 3)] == [0.5, 0, 0, 0, 0, 0, 0]


@pytest.fixture
def born(tmp_path: Path) -> Any:
    control, its = pair()
    status, gone = pair()
    gone.close()
    with control, status, its:
        yield ChildProcess("caller", control, status, tmp_path, shared=True), its


def test_descriptors_that_nobody_asked_for_are_closed(born: tuple[ChildProcess, socket.socket]) -> None:
    held, its = born
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        say(its, {"ready": True}, (0, 0, 0, 0))
        assert held.hear(5.0) == ({"ready": True}, [])
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b"\xff\xfe", b'{"a": ' * 20_000], ids=len)
def test_words_that_are_none_end_the_process(data: bytes, born: tuple[ChildProcess, socket.socket]) -> None:
    held, its = born
    its.send(data)
    with pytest.raises(ProcessEnded, match="no answer"):
        held.hear(5.0)


@pytest.mark.parametrize("text", ["x = " + "-" * 100_000 + "1", "x" + ".a" * 100_000, "x = '\ud800'"], ids=len)
def test_a_text_that_no_parser_takes_is_no_candidate(text: str) -> None:
    with pytest.raises(Misread, match="not valid Python"):
        parse_module(text, "candidate.py")


def test_shared_memory_stays_as_long_as_it_is() -> None:
    memory = Memory(1 << 16)
    again = Memory.of(os.dup(memory.descriptor))
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(again.descriptor, size)
    again.bytes[-1] = 7
    assert int(memory.bytes[-1]) == 7


def test_folders_are_removed_however_deep(tmp_path: Path) -> None:
    root, here = tmp_path / "deep", os.open(".", os.O_RDONLY)
    root.mkdir()
    (tmp_path / "kept").write_text("", encoding="utf-8")
    (root / "out").symlink_to(tmp_path)
    try:
        os.chdir(root)
        for _ in range(2500):
            os.mkdir("d")
            os.chdir("d")
            os.close(os.open("file", os.O_CREAT))
    finally:
        os.fchdir(here)
        os.close(here)
    remove_folder(root)
    assert not root.exists() and (tmp_path / "kept").exists()
    remove_folder(root)  # once more: nothing is there


@pytest.mark.parametrize(
    ("error", "ends", "kind"),
    [
        ("crashed with SIGSEGV", {False}, "writes elsewhere"), ("crashed with SIGBUS", {False}, "writes elsewhere"),
        ("crashed with SIGSEGV", {True, False}, "no answer"), ("crashed with SIGSEGV", set(), "no answer"),
        ("exited with code 0", {False}, "no answer"),
    ],
)  # fmt: skip
def test_a_fault_is_a_write_if_it_comes_again_and_only_where_inputs_are_closed(
    error: str, ends: set[bool], kind: str
) -> None:
    bench: Any = SimpleNamespace(device=Host())
    tried = TrialResult()
    charge_end(
        bench, ProcessEnded(error), "calling",
        lambda writable: None if writable in ends else Answer(0.0, touched="input 0 was written to"), tried,
    )  # fmt: skip
    assert [c.kind for c in tried.reasons] == [kind]
    assert ("input 0 was written to" in tried.reasons[0].said) == (kind == "writes elsewhere")


@dataclass
class _Overslept:
    """A variant whose stops come so late after its word, one after the other."""

    late_s: list[float]
    number: int = 0

    def call(self, cases: list[Any], *, at_once: bool) -> Answer:
        self.number += at_once
        return Answer(1e-4, overslept_s=self.late_s[(self.number - 1) % len(self.late_s)])


def test_a_stop_that_comes_late_is_not_one_with_its_word() -> None:
    asked = []
    for late_s in ([0.0], [4e-3, 0.0], [4e-3]):
        variant: Any = _Overslept(late_s)
        bench: Any = SimpleNamespace(device=Host(), draw=random.Random(0))
        take_at_its_word(bench, variant, [object()], 1e-4, TrialResult())
        asked.append(variant.number)
    assert asked == [AT_ONCE, 2 * AT_ONCE, MOST_AT_ONCE]


def test_how_long_a_process_goes_on_after_its_word_is_told(
    born: tuple[ChildProcess, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, its = born
    say(its, {"ready": True})
    monkeypatch.setattr(ChildProcess, "_signal", lambda self, number: time.sleep(0.02))
    assert held.stop_at_its_word(5.0) >= 0.02 and held.stop_at_its_word(0.0) >= 0.02


def _in_a_fork(work: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_no_folder_is_followed_out_of_the_one_that_is_removed(tmp_path: Path) -> None:
    """Whoever is being ended may put a link in a folder's place between a look at it and what is done then."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    for folder in (outside / "below", root / "inner" / "below"):
        folder.mkdir(parents=True)
        (folder.parent / "kept").write_text("", encoding="utf-8")

    def swap(event: str, arguments: tuple[object, ...]) -> None:
        named = any(str(one).endswith("inner") for one in arguments)
        if event in ("open", "os.scandir", "os.listdir") and named and not (root / "inner").is_symlink():
            (root / "inner").rename(tmp_path / "moved")
            (root / "inner").symlink_to(outside)

    def removed() -> None:
        sys.addaudithook(swap)
        remove_folder(root)

    _in_a_fork(removed)
    assert (tmp_path / "moved").exists() and sorted(os.listdir(outside)) == ["below", "kept"]
    remove_folder(root)
    assert not root.exists() and sorted(os.listdir(outside)) == ["below", "kept"]


def test_folders_that_are_closed_are_removed_too(tmp_path: Path) -> None:
    """By whoever has no more rights than their owner."""
    closed, nobody = tmp_path / "root" / "a" / "b", 65534
    closed.mkdir(parents=True)
    (closed / "file").write_text("", encoding="utf-8")
    tmp_path.chmod(0o777)
    for folder in (closed, closed.parent, tmp_path / "root"):
        folder.chmod(0)
        if os.getuid() == 0:
            os.chown(folder, nobody, nobody)

    def removed() -> None:
        os.chdir(tmp_path)
        if os.getuid() == 0:
            os.setresuid(nobody, nobody, nobody)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # what is in /proc is its own again
        remove_folder(Path("root"))

    _in_a_fork(removed)
    assert not (tmp_path / "root").exists()


def test_nothing_is_left_of_what_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError), Nursery():
        pass
    assert not os.listdir(tmp_path) and len(os.listdir("/proc/self/fd")) == before


def test_what_was_built_waits_for_whoever_judges_it_again(tmp_path: Path) -> None:
    nursery, folders = Nursery(), [tmp_path / str(number) for number in range(6)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        nursery.keep_build(("candidate", number), folder)
    assert [folder.exists() for folder in folders] == [False] * 2 + [True] * 4
    assert nursery.take_build(("candidate", 0)) is None
    assert nursery.take_build(("candidate", 4)) == folders[4] and nursery.take_build(("candidate", 4)) is None


@dataclass
class _Imagined:
    """A variant whose process used so much of a core, each time, between its stop and the clock's start."""

    used: list[int]
    said: list[str] = field(default_factory=list)
    woken: int = 0

    def run(self) -> list[str]:
        return [VariantProcess._awake(self, True, each) for each in self.used]  # type: ignore[arg-type]


def test_a_stopped_process_uses_no_core_again_and_again() -> None:
    assert not any(_Imagined([0, 3_000, 400_000, 0, 0, 0, 200_000, 0]).run())  # seen to stop late, now and then
    assert all(_Imagined([300_000] * 9).run()[3:])
    assert _Imagined([5_000_000]).run()[0]
    assert "lets it go on" in VariantProcess._awake(_Imagined([]), False, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cores", "said"), [(1.0, []), (1.9, ["more cores"])])
def test_it_is_said_where_more_cores_are_at_work_than_were_given(cores: float, said: list[str]) -> None:
    tried = TrialResult()
    remark_cores([Answer(0.02, 0.02 * cores) for _ in range(8)], 1, 1, tried)
    assert [c.kind for c in tried.remarks] == said and not tried.reasons


def _counted(own_s: float, theirs_s: float, jitter_s: float) -> TrialResult:
    """Of calls of a millisecond, after which so much of a core was taken while no clock ran."""
    each = [jitter_s * (number % 3 - 1) for number in range(40)]
    fresh, usual = ([Answer(1e-3, off_clock_s=s + off) for off in each] for s in (own_s, theirs_s))
    tried = TrialResult(seconds={"candidate": [1e-3] * 40})
    count_off_clock(fresh, usual, 1, tried)
    return tried


def test_work_while_no_clock_runs_is_counted_from_where_it_is_no_chance() -> None:
    exact = _counted(9e-5, 3e-5, 3e-6)
    assert not exact.reasons and exact.seconds["candidate"][0] > 1.05e-3
    assert _counted(9e-5, 3e-5, 2e-4).seconds["candidate"] == [1e-3] * 40  # as much as means of such times differ
    assert [c.kind for c in _counted(9e-3, 3e-5, 1e-4).reasons] == ["goes on working"]


def test_a_first_call_may_take_as_long_as_what_is_compiled_in_it() -> None:
    variant = VariantProcess("mine", None, random.Random(0), 60.0, Host(), first_s=300.0)  # type: ignore[arg-type]
    assert variant.patience_s == 300.0
    variant.number = 1
    assert variant.patience_s == 60.0
