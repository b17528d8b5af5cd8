"""Traces that somebody else recorded: what is read of them, that it adds up, and that no file does harm.

``traces/`` holds what torch.profiler and Nsight Compute wrote on an H200: training steps of a small transformer, with
stacks and of two ranks too, replays of a CUDA graph, and counters of five kernels.
"""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machines
import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.diagnose import foreign_trace
from kernelworks.diagnose.foreign_trace import diagnose_trace
from kernelworks.profile.foreign import chrome, events, sums
from kernelworks.profile.foreign.events import TraceError
from kernelworks.profile.foreign.intervals import union
from kernelworks.records import from_json, to_json
from kernelworks.records.trace import TraceDiagnosis
from kernelworks.report.html import render_page, text

TRACES = Path(__file__).parent / "traces"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def raw_events(name: str) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    return found["traceEvents"]


def covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union, one microsecond of sorting at a time."""
    total, reach = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


# ---------------------------------------------------------------- real traces


@pytest.mark.parametrize(("name", "steps"), [("train", 2), ("stack", 1), ("ddp", 2), ("graph", 2)])
def test_a_trace_of_a_gpu_adds_up(name: str, steps: int) -> None:
    found = diagnose_trace(TRACES / f"{name}.json.gz")
    raw = raw_events(name)
    marks = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in raw if e.get("cat") == "user_annotation" and "Step#" in e["name"]
    )
    start, end = marks[0][0], marks[-1][1]
    assert len(found.steps) == steps and found.wall_s == pytest.approx((end - start) / 1e6)
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s, rel=1e-9)
    assert all(seconds > 0 for seconds in found.time_breakdown.values())
    inside = [e for e in raw if e.get("cat") in DEVICE and start <= e["ts"] + e["dur"] / 2 <= end]
    idle = sum(seconds for part, seconds in found.time_breakdown.items() if part.startswith("GPU idle"))
    busy = covered([(e["ts"], e["ts"] + e["dur"]) for e in inside]) / 1e6
    assert idle == pytest.approx(found.wall_s - busy, abs=2e-9 * len(inside))  # stamps are kept to a nanosecond
    work = sum(e["dur"] for e in inside) / 1e6
    assert sum(k.seconds for k in found.kernels) == pytest.approx(work)
    assert sum(spot.seconds for spot in found.hotspots) == pytest.approx(work)
    assert found.devices == ("NVIDIA H200",) and not found.skipped


def test_kernels_are_those_of_their_ops() -> None:
    """By the sequence of launches: a kernel's launch lies inside the op on the launch's thread."""
    raw, found = raw_events("train"), diagnose_trace(TRACES / "train.json.gz")
    ops = [e for e in raw if e.get("cat") == "cpu_op" and e["name"].startswith("aten::")]
    launches = {e["args"]["correlation"]: e for e in raw if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    by_op: dict[str, float] = defaultdict(float)
    for work in (e for e in raw if e.get("cat") in DEVICE):
        launch = launches[work["args"]["correlation"]]
        around = [
            o for o in ops
            if o["tid"] == launch["tid"] and o["ts"] <= launch["ts"]
            and launch["ts"] + launch["dur"] <= o["ts"] + o["dur"]
        ]  # fmt: skip
        by_op[max(around, key=lambda o: o["dur"])["name"].removeprefix("aten::")] += work["dur"] / 1e6
    shown: dict[str, float] = defaultdict(float)
    for spot in found.hotspots:
        shown[spot.op] += spot.seconds
    assert dict(shown) == {op: pytest.approx(seconds) for op, seconds in by_op.items()}


def test_flop_of_products_by_hand() -> None:
    raw, found = raw_events("train"), diagnose_trace(TRACES / "train.json.gz")
    spots = [spot for spot in found.hotspots if spot.op == "mm"]
    (spot,) = spots
    products = [e["args"]["Input Dims"][:2] for e in raw if e.get("name") == "aten::mm"]
    nested = {tuple(map(tuple, dims)) for dims in products}
    assert len(nested) > 1 and "other shape" in spot.shapes
    outer = [e for e in raw if e.get("name") in ("aten::linear", "aten::addmm", "aten::matmul")]
    alone = [
        e["args"]["Input Dims"] for e in raw
        if e.get("name") == "aten::mm"
        and not any(o["tid"] == e["tid"] and o["ts"] <= e["ts"] < o["ts"] + o["dur"] for o in outer)
    ]  # fmt: skip
    assert len(alone) == spot.calls
    assert spot.flop == pytest.approx(sum(2 * a[0] * a[1] * b[1] for a, b, *_ in alone))


def test_communication_graphs_and_stacks() -> None:
    ddp = diagnose_trace(TRACES / "ddp.json.gz")
    assert 0 < ddp.time_breakdown["communication, not overlapped"] < ddp.time_breakdown["kernels"]
    assert any(spot.op == "c10d::allreduce_" and "ncclDevKernel" in spot.kernels[0] for spot in ddp.hotspots)
    assert any("rank 0 of 2" in line for line in ddp.findings)
    (spot,) = diagnose_trace(TRACES / "graph.json.gz").hotspots
    assert spot.op == "cudaGraphLaunch" and spot.calls == 2
    stack = diagnose_trace(TRACES / "stack.json.gz")
    linear = [spot for spot in stack.hotspots if spot.op == "linear"]
    assert {spot.source for spot in linear} == {"t.py:10"} and {"Linear_0"} < {spot.module for spot in linear}
    assert not any("with_stack" in line for line in stack.unknown)
    assert any("with_stack=True" in line for line in ddp.unknown)
    assert any("NVIDIA H200 are not here" in line for line in ddp.unknown)


def test_peaks_of_the_same_gpu_are_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = machines.gpu_record(name="NVIDIA H200"), machines.gpu_record(name="NVIDIA A100")
    monkeypatch.setattr(foreign_trace, "cached_peaks", lambda device: here)
    found = diagnose_trace(TRACES / "train.json.gz")
    product = next(spot for spot in found.hotspots if spot.op == "mm")
    assert product.bottleneck and product.peak and product.achieved is not None and 0 < product.achieved <= 1
    assert not any("peaks" in line for line in found.unknown)
    monkeypatch.setattr(foreign_trace, "cached_peaks", lambda device: other)
    assert all(spot.achieved is None for spot in diagnose_trace(TRACES / "train.json.gz").hotspots)


def record_on_cpu(path: Path, **options: Any) -> None:
    x, weight = torch.ones(64, 128), torch.ones(256, 128, requires_grad=True)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)), **options,
    ) as profiler:  # fmt: skip
        for _ in range(3):
            torch.nn.functional.linear(x, weight).softmax(-1).sum().backward()
            profiler.step()


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_trace_of_a_cpu(ending: str, tmp_path: Path) -> None:
    record_on_cpu(tmp_path / f"it.{ending}", record_shapes=True, with_stack=True)
    found = diagnose_trace(tmp_path / f"it.{ending}")
    assert found.format == "torch.profiler" and len(found.steps) == 2 and found.devices == ()
    assert set(found.time_breakdown) <= {"ops", "Python and framework, not attributed", "input (DataLoader)"}
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)
    linear = next(spot for spot in found.hotspots if spot.op == "linear")
    assert linear.calls == 2 and linear.flop == 2 * 2 * 64 * 128 * 256 and not linear.bottleneck
    assert linear.source.startswith("test_foreign_traces.py:")
    assert any("machine that it was recorded on" in line for line in found.unknown)


def test_without_shapes_stacks_and_steps(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)
    profiler.export_chrome_trace(str(tmp_path / "it.json"))
    found = diagnose_trace(tmp_path / "it.json")
    said = " ".join(found.unknown)
    assert "record_shapes=True" in said and "with_stack=True" in said and "prof.step()" in said
    assert found.steps == () and all(spot.flop is None for spot in found.hotspots)


# ---------------------------------------------------------------- by hand


def made(*extra: dict[str, Any], **head: Any) -> dict[str, Any]:
    """A hundred microseconds: an op launches a kernel late, the next one is queued, then the host waits."""

    def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    return {**head, "traceEvents": [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("cpu_op", "aten::mm", 10, 20),
        event("cuda_runtime", "cudaLaunchKernel", 15, 10, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 26, 2, correlation=2),
        event("kernel", "gemm", 28, 12, tid=7, correlation=1, device=0, stream=7),
        event("kernel", "gemm", 45, 15, tid=7, correlation=2, device=0, stream=7),
        event("gpu_memcpy", "Memcpy DtoH", 50, 20, tid=8, correlation=3, device=0, stream=8),
        event("cuda_runtime", "cudaStreamSynchronize", 80, 10),
        *extra,
    ]}  # fmt: skip


def written(folder: Path, content: Any, name: str = "it.json") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_why_a_gpu_is_idle_by_hand(tmp_path: Path) -> None:
    found = diagnose_trace(written(tmp_path, made()))
    assert {name: round(1e6 * seconds, 3) for name, seconds in found.time_breakdown.items()} == {
        "kernels": 27.0,  # 28 to 40, 45 to 60
        "copies, not overlapped": 10.0,  # 60 to 70
        "GPU idle: dispatch and launches (host)": 15.0,  # 10 to 25
        "GPU idle: launch latency": 3.0,  # 25 to 28
        "GPU idle: between queued kernels": 5.0,  # 40 to 45: launched at 28
        "GPU idle: synchronization": 10.0,  # 80 to 90
        "GPU idle: Python and framework": 30.0,  # 0 to 10, 70 to 80, 90 to 100
    }


def test_the_order_of_events_says_nothing(tmp_path: Path) -> None:
    whole = made()
    first = diagnose_trace(written(tmp_path, whole))
    whole["traceEvents"].reverse()
    assert diagnose_trace(written(tmp_path, whole)) == first
    assert diagnose_trace(written(tmp_path, json.dumps(whole["traceEvents"]))).time_breakdown == first.time_breakdown


def test_stretches() -> None:
    one = union(np.array([5.0, 0.0, 1.0, 9.0]), np.array([6.0, 2.0, 3.0, 9.0]))
    assert one.start.tolist() == [0, 5] and one.end.tolist() == [3, 6] and one.length == 4
    other = union(np.array([2.0, 5.5]), np.array([5.2, 7.0]))
    assert one.common(other).length == pytest.approx(1 + 0.2 + 0.5)
    assert one.less(other).length == pytest.approx(4 - 1.7)
    assert one.gaps(-1, 8).length == 9 - 4 and other.common(union(np.zeros(0), np.zeros(0))).length == 0


# ---------------------------------------------------------------- hostile files

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
    import os

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
    import tracemalloc

    flow = '{"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1}'
    body = json.dumps(made())
    path = written(tmp_path, body.replace("[", "[" + ",".join([flow] * 80_000) + ",", 1))
    assert path.stat().st_size > 5 << 20
    tracemalloc.start()
    try:
        assert diagnose_trace(path).events == 8
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- Nsight


@pytest.mark.parametrize("page", ["details", "raw"])
def test_both_pages_of_nsight_compute(page: str) -> None:
    found = diagnose_trace(TRACES / f"ncu_{page}.csv")
    assert found.format == "Nsight Compute" and found.events == 5 and found.time_breakdown == {}
    assert len(found.kernels) == 4 and found.wall_s == pytest.approx(88.3e-6, rel=0.01)
    first = found.kernels[0]
    assert (
        "xmma_gemm" in first.name
        and first.bottleneck == "memory L1"
        and first.achieved == pytest.approx(0.87, abs=0.02)
    )
    assert "below the roofline, cause unknown" in {kernel.bottleneck for kernel in found.kernels}
    assert any("time between kernels" in line for line in found.unknown)


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("1,234.5", 1234.5), ("1.234,5", 1234.5), ("9,00", 9.0), ("1,234", 1234.0), ("3,164,062,500", 3164062500.0),
        ("12", 12.0), (" 7 ", 7.0), ("n/a", None), ("", None), (None, None), ("1e400", None), ("nan", None),
        ("-", None), ("1\u202f234,5", 1234.5),
    ],
)  # fmt: skip
def test_figures_as_tools_print_them(printed: str | None, value: float | None) -> None:
    assert sums.figure(printed) == value


SUMMARY = (
    "Generating SQLite file x.sqlite from x.nsys-rep\nProcessing [x.sqlite] with [cuda_gpu_kern_sum.py]... \n\n"
    '"Time (%)","Total Time (ns)","Instances","Avg (ns)","Med (ns)","Min (ns)","Max (ns)","StdDev (ns)","Name"\n'
    '60.0,"6,000",3,2000.0,2000.0,1,1,0.0,"void gemm<float>(float*, int)"\n40.0,4000,2,2000,2000,1,1,0,other\n'
)
MEMORY = (
    '\n"Time (%)","Total Time (ns)","Count","Avg (ns)","Operation"\n100.0,500,1,500.0,[CUDA memcpy Host-to-Device]\n'
)
API = '\n"Time (%)","Total Time (ns)","Num Calls","Avg (ns)","Name"\n100.0,900,5,180,cudaLaunchKernel\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_summaries_of_nsight_systems(encoding: str, end: str, tmp_path: Path) -> None:
    body = (SUMMARY + API + MEMORY).replace("\n", end)
    found = diagnose_trace(written(tmp_path, body.encode(encoding), "it.csv"))
    assert [(k.name, k.runs) for k in found.kernels] == [("gemm", 3), ("other", 2), ("[CUDA memcpy Host-to-Device]", 1)]
    assert found.wall_s == pytest.approx(10.5e-6) and found.time_breakdown == {}
    old = SUMMARY.replace('"Time (%)"', '"Time(%)"')
    assert diagnose_trace(written(tmp_path, old, "old.csv")).events == 5


def test_the_timeline_of_nsight_systems(tmp_path: Path) -> None:
    rows = ["100,30,11,NVIDIA A100 (0),1,7,void gemm<float>()", "150,50,12,NVIDIA A100 (0),1,7,[CUDA memcpy HtoD]"]
    body = "\n".join(["Start (ns),Duration (ns),CorrId,Device,Ctx,Strm,Name", *rows, "x,y,,,,,k", "1,2"])
    found = diagnose_trace(written(tmp_path, body, "it.csv"))
    assert found.devices == ("NVIDIA A100 (0)",) and found.skipped == 1
    assert found.time_breakdown == {
        "kernels": pytest.approx(30e-9), "copies, not overlapped": pytest.approx(50e-9),
        "GPU idle: Python and framework": pytest.approx(20e-9),
    }  # fmt: skip
    assert any("no launches" in line for line in found.unknown)


def database(path: Path, change: Callable[[sqlite3.Connection], Any] = lambda d: None) -> Path:
    """An export of ``nsys export --type sqlite``, with the columns that are read and some more."""
    made_of = sqlite3.connect(path)
    made_of.executescript("""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'void gemm<float>(float*)'), (2, 'gemm'), (3, 'cudaLaunchKernel_v7000'),
            (4, 'cudaStreamSynchronize_v3020');
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
            streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (28000, 40000, 0, 1, 7, 1, 0, 1, 2),
            (45000, 60000, 0, 1, 7, 2, 0, 1, 2);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, copyKind INTEGER, bytes INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (50000, 70000, 0, 8, 3, 2, 100);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
            nameId INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (15000, 25000, 1, 1, 3), (26000, 28000, 1, 2, 3),
            (80000, 90000, 1, 4, 4);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
            globalTid INTEGER);
        INSERT INTO NVTX_EVENTS VALUES (10000, 30000, 59, 'aten::mm, seq = 3, op_id = 7', NULL, 1),
            (0, 100000, 59, 'step', NULL, 1), (5, NULL, 34, 'a mark', NULL, 1);
    """)
    change(made_of)
    made_of.commit()
    made_of.close()
    return path


def test_the_database_of_nsight_systems(tmp_path: Path) -> None:
    found = diagnose_trace(database(tmp_path / "it.sqlite"))
    assert found.format == "Nsight Systems" and found.devices == ("NVIDIA A100",)
    (gemm, *_) = found.hotspots
    assert gemm.op == "mm" and gemm.seconds == pytest.approx(27e-6) and gemm.kernels == ("gemm",)
    assert found.time_breakdown["GPU idle: between queued kernels"] == pytest.approx(5e-6)
    assert found.time_breakdown["GPU idle: synchronization"] == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'"), ""),
        (lambda d: d.execute("UPDATE StringIds SET value = NULL"), ""),
        (lambda d: d.execute("DROP TABLE StringIds"), ""),
        (lambda d: d.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1"), ""),
        (lambda d: d.execute("UPDATE NVTX_EVENTS SET text = x'ff00'"), ""),
        (lambda d: d.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN correlationId"), ""),
        (lambda d: [d.execute(f"DROP TABLE {name}") for name in (
            "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS",
        )], "without CUDA events"),
        (lambda d: d.executescript("""
            DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;
            CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE endless(start, end) AS
                (SELECT 1, 2 UNION ALL SELECT start + 1, end + 1 FROM endless) SELECT * FROM endless;
        """), ""),
    ],
)  # fmt: skip
def test_strange_databases(change: Callable[[sqlite3.Connection], Any], words: str, tmp_path: Path) -> None:
    path = database(tmp_path / "it.sqlite", change)
    if words:
        with pytest.raises(TraceError, match=words):
            diagnose_trace(path)
        return
    found = diagnose_trace(path)
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)


def test_a_database_that_ends_in_the_middle(tmp_path: Path) -> None:
    whole = database(tmp_path / "it.sqlite").read_bytes()
    for share in (0.3, 0.6, 0.9):
        path = written(tmp_path, whole[: int(len(whole) * share)], "cut.sqlite")
        try:
            found = diagnose_trace(path)
        except TraceError as error:
            assert "SQLite" in str(error)
        else:
            assert any("in the middle" in line for line in found.findings)


# ---------------------------------------------------------------- the command


def test_the_command(tmp_path: Path) -> None:
    path = str(TRACES / "train.json.gz")
    ran = CliRunner().invoke(app, ["diagnose", "--trace", path, "--out", str(tmp_path)])
    assert ran.exit_code == 0 and "what this trace cannot tell" in ran.output and "kernelworks-out" not in ran.output
    kept = from_json(TraceDiagnosis, (tmp_path / "train.json").read_text(encoding="utf-8"))
    assert kept == diagnose_trace(path)
    page = (tmp_path / "train.html").read_text(encoding="utf-8")
    assert "what this trace cannot tell" in page and "http" not in page.replace("http-equiv", "").replace(
        "http://www.w3", ""
    )


@pytest.mark.parametrize(
    "more", [["x.py"], ["--fix"], ["--rough"], ["--budget", "3"], ["-m"], ["--allow", "tf32"], ["--counters"]]
)
def test_a_trace_is_not_run(more: list[str]) -> None:
    ran = CliRunner().invoke(app, ["diagnose", "--trace", str(TRACES / "graph.json.gz"), *more])
    assert ran.exit_code == 2 and "runs nothing" in ran.output


def test_neither_a_program_nor_a_trace() -> None:
    ran = CliRunner().invoke(app, ["diagnose"])
    assert ran.exit_code == 2 and "--trace FILE" in ran.output
