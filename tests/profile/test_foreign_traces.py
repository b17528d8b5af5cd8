"""Traces that somebody else recorded: what is read of them, that it adds up, and that no file does harm.

``traces/`` holds what torch.profiler and Nsight Compute wrote on an H200: training steps of a small transformer, with
stacks and of two ranks too, replays of a CUDA graph, and counters of five kernels.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import machines
import numpy as np
import pytest
import torch
from made_traces import made, written
from torch.profiler import ProfilerActivity, profile, schedule
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.diagnose import foreign_trace
from kernelworks.diagnose.foreign_trace import diagnose_trace
from kernelworks.profile.foreign.intervals import union
from kernelworks.records import from_json
from kernelworks.records.trace import TraceDiagnosis

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
