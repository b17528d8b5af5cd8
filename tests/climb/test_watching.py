"""A ladder whose rungs are being written, and what the list of ladders says before anybody climbs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelworks.build.cpp import TARGETS
from kernelworks.cli import app
from kernelworks.climb import requirements, watching
from kernelworks.climb.ladder import Ladder, ladder_named, rung_of
from kernelworks.climb.template import start
from kernelworks.learn.exercise import exercises


@pytest.fixture
def own(tmp_path: Path) -> Ladder:
    return ladder_named(str(start("mine", tmp_path)))


class Finished(Exception):
    """Of a watch that has nothing more to see."""


def watched(folder: Path, edits: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch, rung: int | None) -> Any:
    """The numbers that were climbed, and how many turns were open while nothing was: each edit is made in a pause."""
    climbed, open_turns, left = list[int](), list[int](), list(edits)

    class Record:
        rungs = ()

    def climb(ladder: Ladder, number: int, **more: Any) -> Any:
        climbed.append(number)
        return Record()

    @contextlib.contextmanager
    def turn() -> Iterator[Any]:
        open_turns.append(1)
        yield None
        open_turns.pop()

    def pause(seconds: float) -> None:
        assert not open_turns
        if not left:
            raise Finished
        file, was, becomes = left.pop(0)
        path = folder / file
        before = path.stat().st_mtime_ns
        path.write_text(path.read_text(encoding="utf-8").replace(was, becomes), encoding="utf-8")
        os.utime(path, ns=(before + 10**9, before + 10**9))

    monkeypatch.setattr(watching, "climb", climb)
    with pytest.raises(Finished):
        watching.watch_ladder(str(folder), rung, turn, pause=pause)
    return climbed


def test_a_rung_is_climbed_whenever_it_is_written(own: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = [
        ("02_four_chains.cpp", "predicts: 4", "predicts: 3"),
        ("01_naive.cpp", "// next:", "// after:"),  # half a header: said, and the watch goes on
        ("01_naive.cpp", "// after:", "// next:"),
        ("problem.py", "size={", "size={ "),  # all rungs': the last one
    ]
    assert watched(own.folder, edits, monkeypatch, 1) == [1, 2, 1, 2]


def test_a_watch_begins_with_the_file_that_was_written_last(own: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    for rung, second in zip(own.rungs, (2, 1), strict=True):
        os.utime(rung.path, ns=(second * 10**9, second * 10**9))
    assert watched(own.folder, [], monkeypatch, None) == [1]


def test_a_watch_needs_a_rung(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no rung"):
        watching.watch_ladder(str(tmp_path), None, contextlib.nullcontext)  # type: ignore[arg-type]


def test_of_several_targets_the_first_that_runs_is_taken(own: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own.rungs[1].path
    path.write_text(path.read_text().replace("target: avx2", "target: avx512, avx2"), encoding="utf-8")
    for features, target in (
        (TARGETS["avx512"].needs, "avx512"),
        (TARGETS["avx2"].needs, "avx2"),
        (frozenset(), "avx2"),
    ):
        monkeypatch.setattr("kernelworks.climb.ladder.machine", lambda f=features: type("M", (), {"features": f}))
        rung = rung_of(path)
        assert (rung.target, rung.targets) == (target, ("avx512", "avx2"))
    path.write_text(path.read_text().replace("avx512, avx2", "avx512, avx3"), encoding="utf-8")
    with pytest.raises(ValueError, match="avx3"):
        rung_of(path)


def test_what_a_ladder_needs_is_said(own: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own.rungs[1].path
    path.write_text(path.read_text().replace("target: avx2", "target: avx512_vnni"), encoding="utf-8")
    ladder = ladder_named(str(own.folder))
    assert requirements.hardware(ladder) == "AVX2; rung 2 AVX-512 VNNI"
    for features, lacking in ((frozenset(), [1, 2]), (TARGETS["avx2"].needs, [2]), (TARGETS["avx512_vnni"].needs, [1])):
        monkeypatch.setattr(requirements, "machine", lambda f=features: type("M", (), {"features": f}))
        assert [rung.number for rung in requirements.lacking_rungs(ladder)] == lacking
    assert requirements.expected_minutes(ladder) == 1


def test_the_list_names_hardware_minutes_and_exercises() -> None:
    done = CliRunner().invoke(app, ["climb", "--list", "--json"])
    found = {one["ladder"]: one for one in json.loads(done.stdout)}
    assert all(one["minutes"] >= 1 and one["needs"] for one in found.values())
    assert found["cpu-sgemm"]["needs"].startswith("AVX2; rung")
    for one in exercises().values():
        assert not one.ladder or one.name in found[one.ladder]["exercises"]
    said = CliRunner().invoke(app, ["climb", "--list"]).stdout
    assert "minute" in said and "kernelworks learn start rms-norm" in said


def test_what_a_watch_does_not_go_with_is_said() -> None:
    for arguments in (["--list"], ["cpu-sgemm", "--check"], ["cpu-sgemm", "--json"], ["tile"], []):
        done = CliRunner().invoke(app, ["climb", *arguments, "--watch"])
        assert done.exit_code == 2 and "--watch goes with a ladder" in done.stderr
