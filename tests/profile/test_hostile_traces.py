"""Files that are no trace, cut off, damaged or strange: one sentence, or as much as can be read, and no harm."""

from __future__ import annotations

import gzip
import json
import math
import os
import tracemalloc
from pathlib import Path

import pytest
from made_traces import made, written
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.diagnose.foreign_trace import diagnose_trace
from kernelworks.profile.foreign import chrome, events
from kernelworks.profile.foreign.events import TraceError
from kernelworks.records import from_json, to_json
from kernelworks.records.trace import TraceDiagnosis
from kernelworks.report.html import render_page, text

TRACES = Path(__file__).parent / "traces"

STRANGE = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::x", "ts": "NaN", "dur": 1},
    {"ph": "X", "cat": "cpu_op", "name": "aten::x", "ts": 1, "dur": -5},
    {"ph": "X", "cat": "cpu_op", "name": "aten::x", "ts": 1e300, "dur": 1},
    {"ph": "X", "cat": "cpu_op", "name": "aten::x", "ts": [1], "dur": {}},
    {"ph": "X", "cat": "cpu_op", "name": None, "ts": 1, "dur": 1},
    {"ph": "X", "cat": "cpu_op", "name": 7, "ts": 1, "dur": True},
    {"ph": "X", "cat": "kernel", "name": "k", "ts": 10**400, "dur": 1},
    {"ph": "X", "cat": ["kernel"], "name": "k", "ts": 3, "dur": 1},
    {"ph": "X", "cat": "kernel", "name": "k" * 10_000, "pid": "x" * 10_000, "ts": 30, "dur": 0, "args": [1]},
    {"ph": "X", "cat": "kernel", "name": "k", "ts": 31, "dur": 0, "args": {"correlation": -1, "device": {}}},
    {"ph": "X", "cat": "kernel", "name": "k", "ts": 31, "dur": 0, "args": {"correlation": 1 << 80, "device": []}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 32, "dur": 1,
     "args": {"Input Dims": [[1 << 60, -1], "x", None], "Input type": [3, "float", "x"], "Input Strides": 7,
              "Concrete Inputs": ["[" * 500, "1", 2]}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 34, "dur": 1,
     "args": {"Input Dims": [[[[[2]]]], {}], "Input type": ["float"], "Concrete Inputs": []}},
    {"ph": "X", "cat": "python_function", "name": "nn.Module: ", "ts": 5, "dur": 90, "pid": 1, "tid": 1},
    {"ph": "X", "cat": "python_function", "name": "(): ", "ts": 5, "dur": 90, "pid": 1, "tid": 1},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 5, "dur": 10, "pid": 9, "tid": 9},
    7, None, "x", [], {}, {"ph": 3},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(STRANGE)))
def test_a_strange_event_harms_no_other(number: int, tmp_path: Path) -> None:
    plain, found = diagnose_trace(written(tmp_path, made())), diagnose_trace(written(tmp_path, made(STRANGE[number])))
    assert found.time_breakdown["kernels"] == plain.time_breakdown["kernels"]
    assert math.isfinite(found.wall_s) and sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)
    assert from_json(TraceDiagnosis, to_json(found)) == found
    assert text(found) and "<script>" not in render_page([found]).partition("</style>")[2].partition("<script>")[0]


def test_all_of_them_at_once(tmp_path: Path) -> None:
    found = diagnose_trace(written(tmp_path, made(*STRANGE, deviceProperties=[{"name": 3}, 7], distributedInfo=4)))
    assert found.skipped >= 8 and any("made no sense" in line for line in found.findings)


NO_TRACES = [  # content, words
    ("", "is empty"),
    ("   \n", "no trace"),
    ("{}", "a JSON file without traceEvents"),
    ('{"traceEvents": {}}', "a JSON file without traceEvents"),
    ('{"traceEvents": []}', "a trace without ops or kernels"),
    ("[]", "a trace without ops or kernels"),
    ("[1, 2, 3]", "3 events, 3 of them without sense"),
    ('{"traceEvents": [' + "[" * 200_000, "nested too deep"),
    ('{"a": ' + '{"a": ' * 200_000, "nested too deep"),
    ('{"traceEvents": [{"ph": ', "the file ends in the middle"),
    ('{"traceEvents": [' + "9" * 5000 + "]}", "a number that is too long"),
    ('{"traceEvents": [} , ' + "x" * 200, "no JSON from character"),
    ('{"traceEvents" 7', "a field has no name"),
    ("hello\nworld\n", "no trace: neither Chrome JSON"),
    ("a,b,c\n1,2,3\n", "no trace: neither Chrome JSON"),
    ("x" * 1_000_000, "no trace"),
    (b"\x1f\x8b\x08\x00", "damaged or ends in the middle"),
    (b"\x1f\x8bgarbage" * 9, "damaged or ends in the middle"),
    (b"PK\x03\x04....", "a zip archive"),
    (b"\x28\xb5\x2f\xfd....", "zstd"),
    (b"\x7fELF\x00\x00\x01", "a binary file"),
    (b"SQLite format 3\x00" + b"\x00" * 200, "an SQLite file that cannot be read"),
    ('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n', "without durations"),
    ('"ID","Kernel Name","Metric Name"\n"0","k","x"\n', "Metric Value"),
    ("Time (%),Total Time (ns),Num Calls,Name\n1,2,3,cudaLaunchKernel\n", "without kernels"),
    ("Start (ns),Duration (ns),CorrId,Name\n", "without kernels"),
]


@pytest.mark.parametrize(("content", "words"), NO_TRACES)
def test_what_is_no_trace_is_one_sentence(content: str | bytes, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as refused:
        diagnose_trace(path)
    said = str(refused.value)
    assert words in said and str(path) in said and "\n" not in said and len(said) < 400
    ran = CliRunner().invoke(app, ["diagnose", "--trace", str(path)])
    assert ran.exit_code == 2 and "Traceback" not in ran.output


@pytest.mark.parametrize("name", ["x.nsys-rep", "x.ncu-rep", "x.qdrep"])
def test_reports_that_must_be_exported(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="export it with"):
        diagnose_trace(written(tmp_path, b"\x00\x01\x02", name))


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="no regular file"):
        diagnose_trace(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "absent"):
        ran = CliRunner().invoke(app, ["diagnose", "--trace", str(path)])
        assert ran.exit_code in (1, 2) and "Traceback" not in ran.output


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_ends_in_the_middle(share: float, packed: bool, tmp_path: Path) -> None:
    whole = (TRACES / "train.json.gz").read_bytes()
    whole = whole if packed else gzip.decompress(whole)
    path = written(tmp_path, whole[: int(len(whole) * share)], "cut.json.gz" if packed else "cut.json")
    try:
        found = diagnose_trace(path)
    except TraceError as error:
        assert share < 0.1 and "middle" in str(error)
        return
    assert any("in the middle" in line and "were read" in line for line in found.findings)
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)


def test_damage_in_the_midst(tmp_path: Path) -> None:
    body = json.dumps(made())
    at = body.index('"cudaStreamSynchronize"')
    found = diagnose_trace(written(tmp_path, body[:at] + "}}}" + body[at:] + " " * 300))
    assert any("no JSON from character" in line for line in found.findings) and "kernels" in found.time_breakdown


def test_events_are_read_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = diagnose_trace(written(tmp_path, made()))
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(chrome, "CHUNK", size)
        assert diagnose_trace(written(tmp_path, made())) == want


def test_more_than_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 6)
    monkeypatch.setattr(chrome, "MOST_EVENTS", 6)
    assert any("more than 6 events" in line for line in diagnose_trace(written(tmp_path, made())).findings)
    monkeypatch.setattr(events, "MOST_EVENTS", 1000)
    monkeypatch.setattr(events, "MOST_NAMES", 3)
    assert diagnose_trace(written(tmp_path, made())).events == 8
    monkeypatch.setattr(events, "MOST_DETAILS", 0)
    assert diagnose_trace(TRACES / "graph.json.gz").hotspots
    monkeypatch.setattr(chrome, "MOST_VALUE", 100)
    with pytest.raises(TraceError, match="too long"):
        diagnose_trace(written(tmp_path, '["' + "x" * (3 << 20)))


def test_memory_does_not_grow_with_what_is_not_kept(tmp_path: Path) -> None:
    """Flows and counters are most of a file, and none of the record."""

    flow = '{"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1}'
    body = json.dumps(made())
    path = written(tmp_path, body.replace("[", "[" + ",".join([flow] * 80_000) + ",", 1))
    assert path.stat().st_size > 5 << 20
    tracemalloc.start()
    try:
        assert diagnose_trace(path).events == 8
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
