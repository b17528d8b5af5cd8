"""Programs under torch.compile on a GPU, from made-up events: kernel by kernel, and as one of CUDA's graphs."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from machines import gpu_record as gpu
from recorded import Event, load

from kernelworks.diagnose.account.on_gpu import Gpu
from kernelworks.diagnose.record import make_diagnosis
from kernelworks.profile.inductor.compiled_graphs import KERNEL, CompiledGraph
from kernelworks.profile.inductor.dynamo import TracedGraphs
from kernelworks.profile.inductor.graph_kernels import build_call
from kernelworks.profile.inductor_code import graph_of
from kernelworks.profile.inputs import Inputs
from kernelworks.profile.non_compute import CUSTOM_KERNELS
from kernelworks.profile.on_gpu import fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.trace import GRAPH_ANNOTATION, RUN_ANNOTATION, Trace, read_trace
from kernelworks.records import Diagnosis

FLOORS = Floors(event=0.5e-6, gap=0.5e-6, span=0.4e-6, fault=0.0, free=0.0)
N = 4096
RELU = f"""
@triton.jit
def triton_poi_fused_relu_0(in_out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = {N * N}
    x0 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_out_ptr0 + (x0), None)
    tmp1 = tl.full([1], 0, tl.int32)
    tmp2 = triton_helpers.maximum(tmp1, tmp0)
    tl.store(in_out_ptr0 + (x0), tmp2, None)
"""
TEXT = f"""
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', '''{RELU}''', device_str='cuda')

def call(args):
    arg0_1, arg1_1, arg2_1 = args
    args.clear()
    assert_size_stride(arg0_1, ({N}, {N}), ({N}, 1))
    assert_size_stride(arg1_1, ({N}, {N}), ({N}, 1))
    assert_size_stride(arg2_1, ({N}, {N}), ({N}, 1))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda(({N}, {N}), ({N}, 1), torch.bfloat16)
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.mm]
        extern_kernels.mm(arg0_1, reinterpret_tensor(arg2_1, ({N}, {N}), (1, {N}), 0), out=buf0)
        buf1 = buf0; del buf0  # reuse
        # Topologically Sorted Source Nodes: [z], Original ATen: [aten.relu]
        stream0 = get_raw_stream(0)
        triton_poi_fused_relu_0.run(buf1, {N * N}, stream=stream0)
        buf2 = empty_strided_cuda(({N}, {N}), ({N}, 1), torch.bfloat16)
        # Topologically Sorted Source Nodes: [matmul], Original ATen: [aten.mm]
        extern_kernels.mm(buf1, arg1_1, out=buf2)
    return (buf2, )
"""
GRAPH = f"""
class <lambda>(torch.nn.Module):
    def forward(self, arg0_1: "bf16[{N}, {N}]", arg1_1: "bf16[{N}, {N}]", arg2_1: "bf16[{N}, {N}]"):
        # File: /home/me/net.py:3 in forward, code: y = self.a(x)
        permute: "bf16[{N}, {N}]" = torch.ops.aten.permute.default(arg2_1, [1, 0])
        mm: "bf16[{N}, {N}]" = torch.ops.aten.mm.default(arg0_1, permute);  arg0_1 = permute = None

        # File: /home/me/net.py:4 in forward, code: z = torch.relu(y)
        relu: "bf16[{N}, {N}]" = torch.ops.aten.relu.default(mm);  mm = None

        # File: /home/me/net.py:5 in forward, code: return z @ w
        mm_1: "bf16[{N}, {N}]" = torch.ops.aten.mm.default(relu, arg1_1);  relu = arg1_1 = None
        return (mm_1,)
"""
LINES = {f"net.py:{line}": ("Net",) for line in (3, 4, 5)}
MADE = CompiledGraph("cabc", TEXT, "fxyz", GRAPH, TracedGraphs((), LINES))
WORKS = (  # name, us
    ("nvjet_sm90_tst_128x256", 300.0),
    ("splitKreduce_kernel", 10.0),
    ("triton_poi_fused_relu_0", 30.0),
    ("nvjet_sm90_tst_128x256", 290.0),
)
ANNOTATION = f"{GRAPH_ANNOTATION} fxyz ##"
US = 1000
TRACES = Path(__file__).parent / "traces"


def host(name: str, start: float, end: float, number: int = 0, linked: int = 0) -> Event:
    return Event("CPU", [name, round(start * US), round(end * US), 1, 0, -1, number, linked])


def device(name: str, start: float, end: float, number: int) -> Event:
    return Event("CUDA", [name, round(start * US), round(end * US), 0, 0, -1, number, 0, 7])


def as_one_graph(copies: bool) -> list[Event]:
    """A run that launches one graph, with a copy of an input before it or not."""
    events = [host(RUN_ANNOTATION, 0, 800), host(ANNOTATION, 10, 60, 5)]
    if copies:
        events += [host("aten::copy_", 12, 20, 6), host("cudaMemcpyAsync", 14, 18, 90, 6)]
        events.append(device("Memcpy DtoD (Device -> Device)", 20, 40, 90))
    events.append(host("cudaGraphLaunch", 30, 50, 91, 5))
    at = 45.0
    for name, took in WORKS:
        events.append(device(name, at, at + took, 91))
        at += took + 1
    return [*events, host("cudaDeviceSynchronize", 70, 790, 92)]


def one_by_one(*, on_device: bool) -> list[Event]:
    """A run that launches each kernel, as a timing pass and as a survey see it."""
    events = [host(RUN_ANNOTATION, 0, 800), host(ANNOTATION, 10, 60, 5)]
    names = ("aten::mm", f"{KERNEL}triton_poi_fused_relu_0@cabc", "aten::mm")
    works = (WORKS[:2], WORKS[2:3], WORKS[3:])
    at = 30.0
    for number, (name, its) in enumerate(zip(names, works, strict=True)):
        begin = 12 + 12 * number
        events.append(host(name, begin, begin + 10, 10 + number))
        for each, (kernel, took) in enumerate(its) if on_device else ():
            launch = 90 + 10 * number + each
            events.append(host("cudaLaunchKernel", begin + 2 + 3 * each, begin + 4 + 3 * each, launch, 10 + number))
            events.append(device(kernel, at, at + took, launch))
            at += took + 1
    return [*events, host("cudaDeviceSynchronize", 70, 790, 200)] if on_device else events


def inputs() -> dict[int, Inputs]:
    """What the survey knows: the sizes. The events know dtypes."""
    square, line = [N, N], [N, 1]
    return {
        10: Inputs([1, 2, 3], [square, square, square], [line, [1, N], line]),
        11: Inputs([3, None], [square, []], [line, []]),
        12: Inputs([3, 4, 5], [square, square, square], [line, line, line]),
    }


def survey() -> Trace:
    trace = read_trace(one_by_one(on_device=False), [], None, inputs(), compiled=[MADE])
    for call in trace.calls:
        call.dtypes = [torch.bfloat16 if shape else None for shape in call.shapes]
        call.overload = "out" if call.name == "aten::mm" else ""
    return trace


def diagnosed(timed: Trace, seen: Trace) -> Diagnosis:
    return make_diagnosis("compiled", fit_timeline(800e-6, timed, seen, FLOORS), Gpu(gpu(), FLOORS))


def check(found: Diagnosis) -> None:
    """Three calls, each with its work and its place, and nothing that is not explained."""
    assert math.isclose(sum(found.time_breakdown.values()), found.wall_s, rel_tol=1e-6)
    assert found.time_breakdown["unexplained"] < 0.05 * found.wall_s
    by_source = {hotspot.source: hotspot for hotspot in found.hotspots if hotspot.kernels}
    assert by_source["net.py:4"].op == "inductor: relu"
    assert by_source["net.py:4"].bytes == 2 * N * N * 2
    for source, kernels in (("net.py:3", 2), ("net.py:5", 1)):
        hotspot = by_source[source]
        assert (hotspot.op, hotspot.module, hotspot.flop, len(hotspot.kernels)) == ("mm", "Net", 2 * N**3, kernels)
        assert hotspot.modelled and hotspot.achieved is not None and hotspot.achieved > 0.5


@pytest.mark.parametrize("copies", [False, True], ids=["alone", "after a copy"])
def test_kernels_of_a_graph_of_cudas_are_told_apart(copies: bool) -> None:
    seen = read_trace([e for e in as_one_graph(copies) if e.device_type() == "CPU"], [], None, {}, compiled=[MADE])
    check(diagnosed(read_trace(as_one_graph(copies), [], None, None, compiled=[MADE]), seen))


def test_kernels_that_are_launched_one_by_one() -> None:
    check(diagnosed(read_trace(one_by_one(on_device=True), [], None, None), survey()))


@functools.cache
def recorded(name: str) -> Diagnosis:
    """One of ``record.py``'s programs, as an H200 with torch 2.11 ran it."""
    runs, facts = load(TRACES / f"{name}.json.gz")
    graphs = [CompiledGraph(**graph) for graph in facts["graphs"]]
    timed, surveyed = (runs[kind].trace(graphs) for kind in ("timed", "survey"))
    return make_diagnosis(name, fit_timeline(facts["wall"], timed, surveyed, FLOORS), Gpu(gpu(), FLOORS))


@pytest.mark.parametrize("name", ["compiled", "graphed"])
def test_recorded_programs_are_explained(name: str) -> None:
    found = recorded(name)
    assert math.isclose(sum(found.time_breakdown.values()), found.wall_s, rel_tol=1e-6)
    assert found.time_breakdown["unexplained"] + found.time_breakdown[CUSTOM_KERNELS] < 0.01 * found.wall_s
    fused = [hotspot for hotspot in found.hotspots if hotspot.op.startswith("inductor: ")]
    kernels = {kernel for hotspot in fused for kernel in hotspot.kernels}
    assert len(kernels) >= 6 and all(kernel.startswith("triton_") for kernel in kernels)
    assert all(hotspot.source for hotspot in found.hotspots if hotspot.kernels), "each has its line"
    assert all(hotspot.modelled and hotspot.bytes for hotspot in fused)


def test_sizes_that_a_graph_is_called_with_are_those_of_its_kernels() -> None:
    """64 tokens, of which the text knows only ``s27``."""
    hotspots = {hotspot.op: hotspot for hotspot in recorded("graphed").hotspots}
    assert hotspots["inductor: gelu"].bytes == 2 * (2 * 64 * 4096 * 2)  # twice a run, read and written
    assert hotspots["mm"].flop == 2 * 64 * 1024 * 4096


def test_a_module_says_what_its_calls_were_given() -> None:
    calls = [build_call(call, MADE, number, "") for number, call in enumerate(MADE.generated_module.invocations)]
    assert [call.shapes[:2] for call in calls] == [[[N, N], [N, N]], [[N, N], []], [[N, N], [N, N]]]
    assert calls[0].strides[1] == [1, N] and set(calls[0].dtypes) == {torch.bfloat16}
    assert graph_of(GRAPH)["mm"].source == "net.py:3"
