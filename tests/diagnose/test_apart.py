"""Input, communication, compiling and operators of the program's own: parts of the wall clock by themselves."""

from __future__ import annotations

import math
import sys
import time
import types
from typing import Any

import pytest
import torch
from machines import record as machine
from torch.utils.data import DataLoader, Dataset

from kernelworks.compile import report
from kernelworks.diagnose import diagnose
from kernelworks.diagnose.account.account import account, time_breakdown
from kernelworks.diagnose.account.compile_findings import program_findings
from kernelworks.diagnose.account.on_cpu import PARTS, Cpu
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.calls import Call, Place
from kernelworks.profile.inductor.compiled_graphs import CompiledGraph
from kernelworks.profile.inductor.dynamo import Step, TracedGraphs
from kernelworks.profile.non_compute import (
    COMMUNICATION,
    COMPILING,
    CUSTOM_KERNELS,
    INPUT,
    call_name,
    is_custom_op,
    time_category,
)
from kernelworks.profile.on_cpu import CpuTimeline, Moment
from kernelworks.profile.overhead import Floors
from kernelworks.profile.recording import record

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)


@pytest.mark.parametrize(
    ("name", "called", "part"),
    [
        ("entire_frame_compile", "torch.compile at work", COMPILING),
        ("_compile.compile_inner (dynamo_timed)", "torch.compile at work", COMPILING),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "DataLoader, in this process", INPUT),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "DataLoader's workers", INPUT),
        ("c10d::allreduce_", "", COMMUNICATION),
        ("Torch-Compiled Region: 0/0", "", ""),
        ("aten::add", "", ""),
    ],
)
def test_annotations_and_collectives_have_their_part(name: str, called: str, part: str) -> None:
    assert call_name(name) == called
    assert time_category(called or name) == part


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mine::scale", True), ("aten::mul", False), ("torch.distributed.ddp.reducer::copy", False), ("detach", False)],
)
def test_which_operators_are_the_programs_own(name: str, expected: bool) -> None:
    assert is_custom_op(name) is expected


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((8,), float(at))


def test_a_loop_that_waits_for_its_input_is_called_input_bound() -> None:
    loader = DataLoader(Slow(), batch_size=2)

    def loop() -> float:
        return sum(float(batch.sum()) for batch in loader)

    found = diagnose(loop, peaks=machine(), budget_s=0.2, rough=True)
    assert math.isclose(sum(found.time_breakdown.values()), found.wall_s, rel_tol=1e-6)
    assert found.time_breakdown[INPUT] > 0.5 * (found.wall_s - found.time_breakdown["CPU contention"])
    assert any("waits for its DataLoader" in line and "num_workers" in line for line in found.findings)


def test_an_operator_of_its_own_has_its_name_time_and_bytes() -> None:
    with torch.library._scoped_library("kwtest", "DEF") as library:
        library.define("busy(Tensor x) -> Tensor")

        def busy(x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.01)  # stands for a kernel that torch knows nothing of
            return torch.empty_like(x)

        library.impl("busy", busy, "CPU")
        x = torch.randn(1000)
        found = diagnose(lambda: torch.ops.kwtest.busy(x), peaks=machine(), budget_s=0.2, rough=True)
    hotspot = next(hotspot for hotspot in found.hotspots if hotspot.op == "kwtest::busy")
    assert hotspot.bytes == 8000 and not hotspot.modelled
    assert found.time_breakdown[CUSTOM_KERNELS] > 0.5 * (found.wall_s - found.time_breakdown["CPU contention"])
    assert found.time_breakdown["unexplained"] < 0.01 * found.wall_s


# ---------------------------------------------------------------- findings, from made-up runs


def _timeline(calls: list[Call], **more: Any) -> CpuTimeline:
    moments = tuple(Moment(call, 1e-3, 1e-4) for call in calls)
    wall = len(calls) * 1.1e-3
    return CpuTimeline(wall=wall, moments=moments, rest=0.0, floors=FLOORS, **more)


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests of this process compiled with our backend is not part of these programs."""
    monkeypatch.setattr(report, "_graphs", [])


def _said(timeline: CpuTimeline) -> tuple[str, ...]:
    groups = account(timeline, Cpu(machine(), FLOORS, 2))
    parts = time_breakdown(groups, timeline.wall, PARTS)
    assert math.isclose(sum(parts.values()), timeline.wall)
    return program_findings(timeline, groups)


def _bmm(source: str) -> Call:
    return Call(
        "aten::bmm", 0, 1, shapes=[[8, 64, 32], [8, 32, 64]], strides=[[2048, 32, 1], [2048, 64, 1]],
        dtypes=[torch.float32] * 2, scalars=[None] * 2, place=Place("Net", source), graph="a graph",
    )  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), [("net.py:7", True), ("net.py:9", False)])
def test_attention_that_inductor_decomposed(source: str, expected: bool) -> None:
    traced = TracedGraphs(({"a": Step("scaled_dot_product_attention", Place("Net", "net.py:7"))},))
    found = _said(_timeline([_bmm(source), _bmm(source)], compiled=(CompiledGraph("m", "", traced=traced),)))
    assert any("decomposed attention into float32 bmm (net.py:7)" in line for line in found) is expected


def test_graph_breaks_and_recompilations_are_findings_with_their_lines() -> None:
    calls = [_bmm("net.py:1"), _bmm("net.py:2")]
    calls[1].graph = "another graph"
    timeline = _timeline(
        calls,
        compiled=(CompiledGraph("m", "", skipped="skipping cudagraphs due to mutated inputs"),),
        broken=(("net.py:5", "Failed to trace builtin operator"),),
        recompiled=(("net.py:3", "n == 1", 7, 6.1),),
    )
    broken, skipped, anew = _said(timeline)
    assert broken.startswith("1 graph break leaves 2 compiled graphs a run") and "net.py:5 (Failed to trace" in broken
    assert "mutated inputs" in skipped
    assert anew.startswith("net.py:3 was recompiled 7 times (6.1 s in all); the guard that failed last: `n == 1`")


def test_compiling_in_the_runs_that_are_timed_is_a_part_and_a_finding() -> None:
    found = _said(_timeline([Call("torch.compile at work", 0, 1), _bmm("net.py:1")]))
    assert any("torch.compile was at work in the timed runs" in line for line in found)


# ---------------------------------------------------------------- extensions


def test_functions_of_an_extension_are_called_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module stands for one that pybind11 made: a library, with functions that say what they take."""

    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        """scale(arg0: torch.Tensor, arg1: float) -> torch.Tensor"""
        time.sleep(0.001)
        return x * by

    def other(number: int) -> int:
        """other(arg0: int) -> int"""
        return number

    module = types.ModuleType("package.mine")
    module.__file__ = "/somewhere/mine.so"
    vars(module).update(scale=scale, other=other)
    monkeypatch.setitem(sys.modules, "package.mine", module)
    x = torch.randn(1000)
    survey = Survey()
    calls = record(lambda: (module.scale(x, 2.0), module.other(3)), survey=survey).calls
    assert [call.name for call in calls] == ["mine::scale"]
    assert calls[0].place.source.startswith("test_apart.py:")
    assert calls[0].shapes[0] == [1000] and calls[0].children[0].name == "aten::mul"
    assert module.scale is scale and module.other is other


def test_kernels_for_triton_are_called_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class JITFunction:
        __name__ = "add_kernel"

        def run(self, *args: Any, grid: Any, warmup: bool) -> str:
            return "launched"

    before = JITFunction.run
    jit = types.ModuleType("triton.runtime.jit")
    vars(jit)["JITFunction"] = JITFunction
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    x = torch.randn(8)
    trace = record(lambda: JITFunction().run(x, object(), 8, grid=(1,), warmup=False))
    assert [call.name for call in trace.calls] == ["triton::add_kernel"] and trace.output == "launched"
    assert JITFunction.run is before
