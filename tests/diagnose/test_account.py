"""The parts add to the wall clock, whatever the program; nothing is dropped."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from kernelworks.diagnose import diagnose, diagnose_script
from kernelworks.diagnose.account.account import ALLOCATION, USEFUL, _between, account, time_breakdown
from kernelworks.diagnose.account.on_cpu import DISPATCH, GAPS, HOST, PARTS, UNSEEN, Cpu
from kernelworks.diagnose.sentence import sentence
from kernelworks.profile import on_cpu, replay
from kernelworks.profile.non_compute import CUSTOM_KERNELS
from kernelworks.profile.on_cpu import fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.replay import Gap
from kernelworks.profile.trace import Call, Place, Trace
from kernelworks.records import Diagnosis, Peaks, from_json, to_json

FLOORS = Floors(event=0.5e-6, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)
US = 1000  # ns


@pytest.fixture(scope="session")
def machine(ceilings: Peaks) -> Peaks:
    inner = [
        dataclasses.replace(b, kind="copy_nt")
        for b in ceilings.bandwidth
        if b.kind == "copy" and not any(o.kind == "copy_nt" and o.level == b.level for o in ceilings.bandwidth)
    ]
    caches = {"L1": 48 << 10, "L2": 1 << 20, "L3": 32 << 20}
    return dataclasses.replace(ceilings, cache_bytes=caches, bandwidth=(*ceilings.bandwidth, *inner))


def _linear(start: int, end: int, **more: object) -> Call:
    return Call(
        "aten::linear", start, end, shapes=[[1, 1024], [4096, 1024], []], strides=[[1024, 1], [1024, 1], []],
        dtypes=[torch.float32, torch.float32, None], scalars=[None, None, None], **more,
    )  # type: ignore[arg-type]  # fmt: skip


def _trace(calls: list[Call], end: int) -> Trace:
    return Trace(0, end, calls, len(calls), 0, None)


def test_parts_of_invented_calls(machine: Peaks) -> None:
    unknown = Call("other::op", 700 * US, 800 * US, dtypes=[torch.float32], shapes=[[8]], strides=[[1]], scalars=[None])
    view = Call("aten::view", 810 * US, 812 * US, dtypes=[torch.float32], shapes=[[8]], strides=[[1]], scalars=[None])
    calls = [_linear(10 * US, 610 * US, place=Place("M", "m.py:1", faults=40)), unknown, view]
    trace = _trace(calls, 1000 * US)
    timeline = fit_timeline(1000e-6, [trace], trace, dataclasses.replace(FLOORS, event=0.0))
    groups = account(timeline, Cpu(machine, FLOORS, 2))
    parts = time_breakdown(groups, timeline.wall, PARTS)
    assert list(parts) == list(PARTS)
    assert math.isclose(sum(parts.values()), 1000e-6)
    assert all(value >= -1e-12 for value in parts.values())
    assert parts[CUSTOM_KERNELS] == pytest.approx(100e-6)  # the op that is not torch's
    assert parts[ALLOCATION] == pytest.approx(40 * FLOORS.fault)
    gaps = (10 + 90 + 10 + 188) * 1e-6
    assert parts[HOST] == pytest.approx(gaps - 3 * FLOORS.gap)
    assert parts[DISPATCH] == pytest.approx(3 * FLOORS.gap + FLOORS.span + 2e-6, rel=0.1)
    dram = max(b.gbs for b in machine.bandwidth if b.level == "L3" and b.kind == "read")
    assert parts[USEFUL] == pytest.approx(4 * 4096 * 1024 / (dram * 1e9), rel=0.1)


def test_far_weights_come_from_memory(machine: Peaks) -> None:
    """The same product, its weight kept between runs that touch 64 MiB in all, is held against DRAM."""
    near = _trace([_linear(0, 900 * US, pointers=[1, 2, None])], 1000 * US)
    useful = []
    for count in (1, 5):  # five weights of 16 MiB leave a cache of 32 MiB before they come again
        calls = [_linear(i * 1000 * US, i * 1000 * US + 900 * US, pointers=[1, 2 + i, None]) for i in range(count)]
        trace = _trace(calls, count * 1000 * US)
        persistent = {2 + i: 16 << 20 for i in range(count)}
        timeline = fit_timeline(count * 1e-3, [trace], trace, FLOORS, persistent=persistent)
        useful.append(time_breakdown(account(timeline, Cpu(machine, FLOORS, 2)), timeline.wall, PARTS)[USEFUL] / count)
    assert near.calls and useful[1] > 1.8 * useful[0]


def test_profiler_is_taken_off_and_the_rest_fitted() -> None:
    calls = [_linear(10 * US, 110 * US), _linear(130 * US, 230 * US)]
    trace = _trace(calls, 240 * US)
    timeline = fit_timeline(480e-6, [trace], trace, dataclasses.replace(FLOORS, event=5e-6))
    total = sum(m.seconds + m.gap for m in timeline.moments) + timeline.tail
    assert math.isclose(total, 480e-6)
    first, second = timeline.moments
    assert first.gap == pytest.approx(5e-6 * timeline.scale)
    assert second.gap == pytest.approx(15e-6 * timeline.scale)
    assert timeline.scale == pytest.approx(480 / 230)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = F.gelu(self.inner(x))
        return x[:64].to_sparse()


def _diagnosed(machine: Peaks) -> Diagnosis:
    model, x = Small().eval(), torch.randn(64, 64)
    with torch.no_grad():
        return diagnose(model, x, peaks=machine, budget_s=0.5, program="small")


def test_diagnosis_of_a_real_program(machine: Peaks) -> None:
    found = _diagnosed(machine)
    assert math.isclose(sum(found.time_breakdown.values()), found.wall_s, rel_tol=1e-9)
    assert math.isclose(sum(r.seconds for r in found.hotspots), found.wall_s, rel_tol=1e-6)
    assert math.isclose(sum(r.share for r in found.hotspots), 1.0, rel_tol=1e-6)
    for hotspot in found.hotspots:
        assert math.isclose(sum(hotspot.parts.values()), hotspot.seconds, rel_tol=1e-6, abs_tol=1e-9)
        assert 0 <= hotspot.low_s <= hotspot.high_s <= hotspot.seconds * (1 + 1e-9)
        assert hotspot.action or not hotspot.high_s  # what recovers time says how
        assert hotspot.achieved is None or 0 <= hotspot.achieved <= 1
    linear = next(r for r in found.hotspots if r.op == "linear")
    assert (linear.calls, linear.module, linear.flop) == (10, "Small.inner", 10 * 2 * 64**3)
    assert any(line.startswith("to_sparse: 1 call,") for line in found.unmodelled)
    assert not next(r for r in found.hotspots if r.op == "to_sparse").modelled
    assert "runs at" in found.sentence and "of what this machine can do" in found.sentence
    assert from_json(Diagnosis, to_json(found)) == found


def test_run_of_a_script(machine: Peaks, tmp_path: object) -> None:
    path = f"{tmp_path}/script.py"
    with open(path, "w") as file:
        file.write("import sys, torch\nx = torch.ones(int(sys.argv[1]))\nprint((x + x).sum().item())\n")
    lines: list[str] = []
    found = diagnose_script(path, ["1000"], progress=lines.append, peaks=machine, budget_s=0.5)
    assert found.program == "script.py 1000"
    assert {"add", "sum", "item"} <= {r.op for r in found.hotspots}
    assert "warming up: the program's first run" in lines
    assert math.isclose(sum(found.time_breakdown.values()), found.wall_s, rel_tol=1e-9)


def test_program_without_ops(machine: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is Python, as far as nobody who looks says otherwise."""
    monkeypatch.setattr(on_cpu, "watch_program", lambda run: ([], []))
    found = diagnose(lambda: sum(range(1000)), peaks=machine, budget_s=1.0)
    assert math.isclose(found.time_breakdown[HOST], found.wall_s, rel_tol=1e-6)


def test_program_that_raises(machine: Peaks) -> None:
    with pytest.raises(ZeroDivisionError):
        diagnose(lambda: 1 / 0, peaks=machine)


def test_sentence_of_a_program_with_nothing_to_gain() -> None:
    parts = dict.fromkeys(PARTS, 0.0) | {USEFUL: 0.9, HOST: 0.1}
    assert (
        sentence(parts, (), 1.0)
        == "this program runs at 90% of what this machine can do; no known optimization is predicted to gain"
    )


def test_what_is_between_ops_has_the_line_with_most_of_it() -> None:
    """Not that of the longest single gap: one import on a line is no place for what a loop does on another."""
    places = ["set_up.py:1"] + ["train.py:9"] * 8 + ["train.py:10"] * 4
    seconds = [2e-3] + [1e-3] * 8 + [0.1e-3] * 4
    gaps = [
        Gap(replay.PYTHON, each, Call("aten::add", 0, 1, place=Place("", where)))
        for each, where in zip(seconds, places, strict=True)
    ]
    device = SimpleNamespace(gaps=GAPS, unseen=UNSEEN)
    (group,) = _between(gaps, device)
    assert group.place.source == "train.py:9" and math.isclose(sum(e.seconds for e in group.entries), sum(seconds))
    many = [
        dataclasses.replace(gap, call=Call("aten::add", 0, 1, place=Place("", f"a.py:{i}")))
        for i, gap in enumerate(gaps)
    ]
    assert _between(many[1:9], device)[0].place.source == ""  # an eighth of it each
