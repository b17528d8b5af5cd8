"""GPU programs from recorded traces: kernels linked to ops and places, parts that add up, gaps by cause, findings.

The traces were recorded with torch 2.11 on one H200: a training step and a decode loop with ``.item()`` of a Llama of
two layers, a chain of 120 tiny kernels, four fresh blocks of memory filled and read, and four large products.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import subprocess
from pathlib import Path

import pytest
from machines import gpu_record as gpu
from recorded import Recorded, load, save

from kernelworks.diagnose import counters
from kernelworks.diagnose.account.account import WITHOUT_PEAKS
from kernelworks.diagnose.account.on_gpu import HOST as HOST_WORK
from kernelworks.diagnose.account.on_gpu import PARTS, SYNCHRONISATION, Gpu
from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.predict import predict
from kernelworks.diagnose.record import make_diagnosis
from kernelworks.measure.clock import nsight
from kernelworks.profile import replay
from kernelworks.profile.cost.shapes import signature
from kernelworks.profile.on_gpu import GpuTimeline, fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.replay import Span, short
from kernelworks.profile.timeline import Cost
from kernelworks.profile.trace import RUNTIME
from kernelworks.records import CounterCheck, Diagnosis, from_json, to_json

TRACES = Path(__file__).parent / "traces"
NAMES = ("training", "decode", "tiny", "fresh", "large")
FLOORS = Floors(event=0.5e-6, gap=0.5e-6, span=0.4e-6, fault=0.0, free=0.0)


@functools.cache
def timeline(name: str) -> GpuTimeline:
    runs, facts = load(TRACES / f"{name}.json.gz")
    survey = runs["survey"]
    return fit_timeline(facts["wall"], runs["timed"].trace(), survey.trace(), FLOORS, persistent=survey.persistent)


@functools.cache
def diagnosis(name: str) -> Diagnosis:
    return make_diagnosis(name, timeline(name), Gpu(gpu(), FLOORS))


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_to_the_wall_clock(name: str) -> None:
    found = diagnosis(name)
    assert tuple(found.time_breakdown) == tuple(part for part in PARTS if part != WITHOUT_PEAKS)
    assert math.isclose(sum(found.time_breakdown.values()), found.wall_s, rel_tol=1e-9)
    assert math.isclose(sum(r.seconds for r in found.hotspots), found.wall_s, rel_tol=1e-3)
    assert abs(found.time_breakdown["unexplained"]) < 0.1 * found.wall_s
    for hotspot in found.hotspots:
        assert math.isclose(sum(hotspot.parts.values()), hotspot.seconds, rel_tol=1e-6, abs_tol=1e-9)
        assert 0 <= hotspot.low_s <= hotspot.high_s <= hotspot.seconds * (1 + 1e-9)
        assert hotspot.achieved is None or 0 <= hotspot.achieved <= 1
        assert hotspot.action or not hotspot.high_s  # what recovers time says how
    assert found.gpu is not None
    assert math.isclose(found.gpu.busy_s + found.gpu.idle_s, found.wall_s)
    assert math.isclose(found.gpu.critical_device_s + found.gpu.critical_host_s, found.wall_s, rel_tol=1e-3)
    assert all(0 <= k.bound_s <= k.seconds * (1 + 1e-9) for k in found.gpu.kernels)
    assert from_json(Diagnosis, to_json(found)) == found


@pytest.mark.parametrize("name", NAMES)
def test_a_survey_needs_no_device_in_its_trace(name: str) -> None:
    survey = load(TRACES / f"{name}.json.gz")[0]["survey"]
    host = [e for e in survey.events if e.device_type() == "CPU" and not RUNTIME.match(e.name())]
    alone = dataclasses.replace(survey, events=host).trace()
    assert [c.key for c in alone.calls] == [c.key for c in survey.trace().calls]
    assert [c.place for c in alone.calls] == [c.place for c in survey.trace().calls]


@pytest.mark.parametrize("name", NAMES)
def test_everything_the_device_did_is_linked_to_the_op_that_asked_for_it(name: str) -> None:
    runs, _ = load(TRACES / f"{name}.json.gz")
    trace = runs["timed"].trace()
    assert trace.lost == 0 and trace.device_seconds > 0
    assert not any(r.works for r in trace.between)
    assert trace.elsewhere == 0  # autograd's thread is the program's: the program waits for it


def test_kernels_of_a_training_step_have_module_shapes_and_work() -> None:
    found = diagnosis("training")
    linear = [r for r in found.hotspots if r.op == "linear" and r.module.endswith("mlp.gate_proj")]
    assert len(linear) == 1 and linear[0].calls == 2
    assert linear[0].flop == 2 * 2 * 256 * 256 * 704  # two layers, 2 x 128 tokens, 256 to 704
    assert linear[0].shapes == "bf16 2x128x256, bf16 704x256"
    assert any(name.startswith("nvjet") for name in linear[0].kernels)
    backward = [r for r in found.hotspots if r.op == "mm (backward)" and "mlp.gate_proj" in r.module]
    assert backward and sum(r.flop for r in backward) == 2 * linear[0].flop
    assert any(k.op.startswith("_scaled_dot_product_cudnn_attention") and k.flop for k in found.gpu.kernels)
    problems = " ".join(found.findings)
    assert "the GPU waits for the host" in problems  # a model so small is launches and Python


def test_a_program_of_launches_is_told_from_one_of_kernels() -> None:
    tiny, large = diagnosis("tiny"), diagnosis("large")
    assert tiny.gpu.critical_host_s > 0.95 * tiny.wall_s and tiny.gpu.without_host_s < 0.3 * tiny.wall_s
    assert large.gpu.critical_device_s > 0.9 * large.wall_s
    assert "CUDA graph" in next(r for r in tiny.hotspots if r.op == "launch latency").action
    kernel = next(r for r in tiny.hotspots if r.op == "mul")
    assert kernel.high_s < 0.3 * kernel.seconds  # faster kernels recover nothing if the device waits for the host
    product = next(r for r in large.hotspots if r.op == "matmul")
    assert product.bottleneck == "compute" and product.achieved > 0.8


def test_gaps_by_cause() -> None:
    fresh = diagnosis("fresh")
    assert fresh.time_breakdown["allocation (cudaMalloc)"] > 0.2 * fresh.wall_s
    assert any("device memory asked of the driver" in line for line in fresh.findings)
    decode = diagnosis("decode")
    assert decode.time_breakdown[SYNCHRONISATION] > 0 and decode.time_breakdown[HOST_WORK] > 0.3 * decode.wall_s
    waits = [step for step in timeline("decode").program if step.waits]
    assert len(waits) >= 6  # a number read at each of five tokens, and the end


def test_bytes_that_the_cache_served_are_said_so_and_never_over_the_peak() -> None:
    chain = diagnosis("large")
    for kernel in chain.gpu.kernels:
        assert kernel.bound_s <= kernel.seconds * (1 + 1e-9)
    slow = gpu()
    crawling = dataclasses.replace(
        slow, bandwidth=tuple(dataclasses.replace(b, gbs=b.gbs / 8) if b.cache == "cold" else b for b in slow.bandwidth)
    )
    found = make_diagnosis("large", timeline("large"), Gpu(crawling, FLOORS))
    added = next(r for r in found.hotspots if r.op == "add")
    assert added.bottleneck == "memory L2" and added.achieved <= 1.0


def test_prediction_of_a_program_that_is_not_changed() -> None:
    for name in NAMES:
        line = timeline(name)
        assert predict(line, line.calls, IsolatedCosts(), Gpu(gpu(), FLOORS)) == (1.0, 0)


def test_prediction_of_faster_calls_gains_only_where_they_are_waited_for() -> None:
    shares = {}
    for name, op in (("large", "aten::matmul"), ("tiny", "aten::mul")):
        line = timeline(name)
        ours = [call for call in line.calls if call.name == op]
        costs = {("kernelworks::faster", signature(c), ()): Cost(5e-6, (1e-6,)) for c in ours}
        swapped = [_renamed(c) if c.name == op else c for c in line.calls]
        shares[name] = predict(line, swapped, IsolatedCosts(costs), Gpu(gpu(), FLOORS)).share
    assert shares["large"] < 0.2  # four products of a millisecond are gone
    assert shares["tiny"] > 0.6  # kernels of a microsecond, launched as often as before


def _renamed(call: replay.Call) -> replay.Call:
    return dataclasses.replace(call, name="kernelworks::faster")


def test_recorded_traces_are_written_as_they_were_read(tmp_path: Path) -> None:
    runs, facts = load(TRACES / "tiny.json.gz")
    plain = {
        name: Recorded([[e.device_type(), *e._values] for e in run.events], run.inputs, run.places, run.persistent)
        for name, run in runs.items()
    }
    save(tmp_path / "again.json.gz", plain, facts)
    again, same_facts = load(tmp_path / "again.json.gz")
    assert same_facts == facts
    assert again["timed"].trace().device_seconds == runs["timed"].trace().device_seconds


def test_short_names() -> None:
    assert short("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(int)") == "cunn_SoftMaxForward"
    assert short("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT") == "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    assert short("Memcpy DtoH (Device -> Pageable)") == "Memcpy DtoH"


# ---------------------------------------------------------------- counters

CSV = """==PROF== Connected
"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum","sm__ops_path_tensor_src_bf16_dst_fp32.sum"
"","","byte","ns",""
"0","nvjet_a","86,249,984","172,224","137,438,953,472"
"1","void f<int>(T1)","67,117,568","23,296","0"
"""


def test_counters_are_read_from_ncus_table() -> None:
    counted = nsight.parse_counters(CSV, counters.METRICS)
    assert [name for name, _ in counted] == ["nvjet_a", "void f<int>(T1)"]
    assert counted[0][1]["read"] == 86249984 and counted[0][1]["seconds"] == pytest.approx(172.224e-6)
    assert counted[0][1]["bf16"] == 2 * 4096**3
    assert nsight.parse_counters("==ERROR== No kernels were profiled.", counters.METRICS) == []


def test_the_window_holds_what_takes_the_time() -> None:
    kernels = [("a", 1.0)] * 200 + [("b", 50.0)] + [("a", 1.0)] * 200
    first = counters.window(kernels)
    assert first <= 200 < first + counters.KERNELS
    assert counters.window([("a", 1.0)]) == 0


def test_a_finding_says_how_far_off_the_model_is() -> None:
    check = CounterCheck("k", "mm", 1e-4, 2e9, 2e9, 60e6, 66e6, 30e6, 1e9)
    text = counters.finding([check])
    assert "bytes read are 0.91" in text and "matrix flop are 1.00" in text


def test_without_ncu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    found, line = counters.checks(timeline("tiny"), "program.py", ())
    assert found == () and "not installed" in line


def test_kernels_are_compared_in_order_until_the_program_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    line = timeline("large")
    spans: list[Span] = [s for s in line.played.spans if not s.job.name.startswith(("Memcpy", "Memset"))]
    header = '"Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum"\n"","byte","ns"\n'
    lines = "".join(f'"{s.job.name}","300,000,000","1,000"\n' for s in spans)
    done = subprocess.CompletedProcess([], 0, header + lines, "")
    monkeypatch.setattr("shutil.which", lambda name: "/ncu")
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: done)
    found, text = counters.checks(line, "program.py", ())
    assert {c.op for c in found} >= {"mm", "gelu", "add"} and "bytes read" in text
    done.stdout = header + '"something else","300","1"\n'
    assert counters.checks(line, "program.py", ())[0] == ()
    done.stdout, done.stderr = "", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    assert "ERR_NVGPUCTRPERM" in counters.checks(line, "program.py", ())[1]
