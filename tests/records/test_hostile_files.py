"""Whatever stands where a kept file should be, it is ignored with a word: nothing hangs, grows or raises."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kernelworks.build import cache as builds
from kernelworks.compile import race
from kernelworks.diagnose.fix import plan
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import definition, kernelbook
from kernelworks.judge.problem import Misread
from kernelworks.machine import environment, machine
from kernelworks.measure.bench import results
from kernelworks.measure.peaks import cache as ceilings
from kernelworks.records import Bandwidth, BenchResult, Peaks, Verification, from_json, history, json_text
from kernelworks.records.compare import NoRecord, compare
from kernelworks.records.json_text import build_record, json_messages

SECONDS = 20  # in which a read has come back; a pipe that nobody writes to never does
DEEP = 100_000


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    ceilings.forget_peaks()
    tuning_records.reread()
    yield tmp_path
    ceilings.forget_peaks()
    tuning_records.reread()


def too_long(number: int, frame: Any) -> None:
    raise TimeoutError("a read that does not come back")


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def grown(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk is used


PLACED: dict[str, Callable[[Path], object]] = {
    "nested lists": lambda path: path.write_text("[" * DEEP),
    "nested lists that close": lambda path: path.write_text("[" * DEEP + "]" * DEEP),
    "nested objects": lambda path: path.write_text('{"sha256":' * DEEP),
    "nested in a field": lambda path: path.write_text('{"op": ' + "[" * DEEP + "]" * DEEP + "}"),
    "a list": lambda path: path.write_text("[1, 2]"),
    "a number": lambda path: path.write_text("1e999"),
    "null": lambda path: path.write_text("null"),
    "lists of null": lambda path: path.write_text("[null, [null]]"),
    "no text": lambda path: path.write_bytes(bytes(range(256))),
    "empty": lambda path: path.write_text(""),
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "larger than the memory": grown,
}


def certificate_path() -> Path:
    return environment.cache_dir("certificates") / machine().kind / "softmax.scalar.json"


def read_certificate() -> None:
    """On a machine of a kind that no certificate came with."""
    with mock.patch.object(certificates, "_shipped", lambda kind: {}):
        reason = certificates.invalid_reason("softmax", OPS["softmax"].kernel("scalar"))
    assert reason is not None and "cannot be read" in reason


def read_timings() -> None:
    path = timing_path()
    tuning_records.reread()
    assert tuning_records._read(path)[0] == ()
    assert tuning_records._read(path)[1]  # a word


def timing_path() -> Path:
    return environment.cache_dir("tuning_records") / "here" / "softmax.0123456789abcdef.json"


def build_path() -> Path:
    return environment.cache_dir("build") / "x.failed.json"


def race_path() -> Path:
    return race.path_of("constant_weights", "cpu", ["a test"])


def read_note() -> None:
    library = build_path().with_name("library.so")
    library.write_bytes(b"")
    assert not builds.intact(library, build_path())


KEPT: dict[str, tuple[Callable[[], Path], Callable[[], None]]] = {
    "certificate": (certificate_path, read_certificate),
    "tuning_records": (timing_path, read_timings),
    "history": (history.path, lambda: _none(history.read_outcomes())),
    "race of a region": (race_path, lambda: _none(race.read_race_result(race_path()))),
    "failed build": (build_path, lambda: _none(builds.failure("x"))),
    "note of a library": (build_path, read_note),
    "peaks": (ceilings._path, lambda: _none(ceilings.cached_peaks())),
}


def _none(found: object) -> None:
    assert not found


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("kept", KEPT)
def test_what_is_no_file_of_ours_is_ignored(kept: str, placed: str) -> None:
    path_of, read = KEPT[kept]
    path = path_of()
    path.parent.mkdir(parents=True, exist_ok=True)
    PLACED[placed](path)
    read()


@pytest.mark.parametrize("placed", PLACED)
def test_a_library_that_is_no_file_is_not_intact(placed: str, tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    note.write_text(json.dumps({"sha256": "0" * 64}))
    PLACED[placed](tmp_path / "library.so")
    assert not builds.intact(tmp_path / "library.so", note)


# ---------------------------------------------------------------- files that a user names


NAMED: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "a plan": (plan.load_plan, ValueError),
    "records to compare": (lambda path: compare(path, path), NoRecord),
    "benchmarks": (results.read_results, ValueError),
    "a definition": (lambda path: definition.parse_json(path.read_text(), str(path)), Misread),
    "rows of KernelBook": (lambda path: kernelbook.row_in(path, path.read_text()), Misread),
}


@pytest.mark.parametrize("placed", ["nested lists", "nested lists that close", "nested in a field"])
@pytest.mark.parametrize("named", NAMED)
def test_a_named_file_that_is_nested_too_deep_is_refused_in_words(named: str, placed: str, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    PLACED[placed](path)
    read, error = NAMED[named]
    with pytest.raises(error):
        read(path)


# ---------------------------------------------------------------- records of the wrong types


WRONG: tuple[object, ...] = ({}, [], "x", None, [["x"]], {"x": []}, True, 1.5, "1", 10**400)


@pytest.mark.parametrize("name", list(certificates.Certificate.__dataclass_fields__))
def test_a_certificate_whose_field_is_of_another_type_is_none(name: str) -> None:
    sound = {
        "op": "softmax", "kernel": "scalar", "source_hash": "0", "toolchain": "g++", "kind": machine().kind, "cases": 3,
        "worst": 0.5, "mutants_rejected": 5, "date": "2026-01-01",
    }  # fmt: skip
    assert build_record(certificates.Certificate, sound).worst == 0.5
    kind = certificates.Certificate.__dataclass_fields__[name].type
    for value in WRONG:
        right = {"str": str, "int": int, "float": (int, float)}.get(str(kind), dict)
        if isinstance(value, right) and not isinstance(value, bool):
            continue
        with pytest.raises(ValueError, match=r"Certificate|not a"):
            build_record(certificates.Certificate, sound | {name: value})


def test_leaves_of_records_are_of_their_types() -> None:
    rate = {"level": "L1", "working_set_bytes": 1, "kind": "read", "threads": 1, "gbs": 1}
    assert build_record(Bandwidth, rate).gbs == 1
    for name, value in (("gbs", "1"), ("gbs", True), ("threads", 1.5), ("threads", None), ("level", 3)):
        with pytest.raises(ValueError, match="not a"):
            build_record(Bandwidth, rate | {name: value})
    for cls in (Peaks, BenchResult, Verification):
        with pytest.raises(ValueError, match="nested too deep"):
            from_json(cls, "[" * DEEP)


def test_regular_files_alone_are_read_and_none_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert json_text.read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, at most 4"):
        json_text.read_regular(path, 4)


def test_what_a_library_prints_between_messages_is_passed_over() -> None:
    """A line of its own words, a number, a list, and one that is nested too deep."""
    lines = [
        "loading...\n",
        "3\n",
        "[1]\n",
        '"at"\n',
        "[" * 100_000 + "\n",
        '{"at": 1}\n',
        "",
        '{"result": {"a": null}}\n',
    ]
    assert list(json_messages(lines)) == [{"at": 1}, {"result": {"a": None}}]
