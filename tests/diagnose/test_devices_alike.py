"""What holds on a CPU holds on a GPU: one protocol, one account, one prediction, whatever the device."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest
import torch
from test_gpu import FLOORS, NAMES, gpu, timeline

from kernelworks.diagnose import diagnose
from kernelworks.diagnose.account.account import WITHOUT_PEAKS, account, time_breakdown
from kernelworks.diagnose.account.on_cpu import Cpu
from kernelworks.diagnose.account.on_gpu import Gpu
from kernelworks.diagnose.forecast.device import Device
from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.isolated_on_cpu import Capture, time_isolated
from kernelworks.diagnose.forecast.predict import predict
from kernelworks.diagnose.optimizations import torch_compile
from kernelworks.profile import on_cpu
from kernelworks.profile.cost.shapes import signature
from kernelworks.profile.timeline import Cost, Timeline
from kernelworks.profile.trace import Call, Place, Trace
from kernelworks.records import Peaks

US = 1000  # ns


@pytest.fixture(scope="session")
def machine(ceilings: Peaks) -> Peaks:
    return dataclasses.replace(ceilings, cache_bytes={"L3": 32 << 20})


def _call(name: str, start: int, end: int, shape: tuple[int, ...] = (32, 64), **more: object) -> Call:
    return Call(
        name, start * US, end * US, shapes=[list(shape)], strides=[[shape[-1], 1]], dtypes=[torch.float32],
        scalars=[None], place=Place("M", "m.py:1", 0, "M"), **more,
    )  # type: ignore[arg-type]  # fmt: skip


def _on_cpu(*calls: Call, end: int) -> on_cpu.CpuTimeline:
    trace = Trace(0, end * US, list(calls), len(calls), 0, None)
    return on_cpu.fit_timeline(end * 1e-6, [trace], trace, FLOORS)


def _device(name: str, machine: Peaks) -> tuple[Timeline, Cpu | Gpu]:
    if name == "cpu":
        line = _on_cpu(_call("aten::gelu", 10, 110), _call("aten::relu", 120, 220), end=400)
        return line, Cpu(machine, FLOORS, 2)
    return timeline(name), Gpu(gpu(), FLOORS)


DEVICES = ("cpu", *NAMES)


@pytest.mark.parametrize("name", DEVICES)
def test_entries_and_gaps_add_to_the_wall_clock(name: str, machine: Peaks) -> None:
    line, device = _device(name, machine)
    alone = sum(ran.exclusive + ran.entry for ran in line.entries())
    assert alone + sum(gap.seconds for gap in line.gaps()) == pytest.approx(line.wall)
    parts = time_breakdown(account(line, device), line.wall, device.parts)
    assert tuple(parts) == device.parts and sum(parts.values()) == pytest.approx(line.wall)


def test_a_cpu_is_a_host_that_waits_for_nothing(machine: Peaks) -> None:
    line, _ = _device("cpu", machine)
    its = [(ran.before, ran.cost) for ran in line.entries()]
    assert line.replay(its) == pytest.approx(line.wall)
    half = line.wall - sum(ran.host for ran in line.entries()) / 2
    assert line.replay([(before, Cost(cost.host / 2)) for before, cost in its]) == pytest.approx(half)


@pytest.mark.parametrize("now", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("name", DEVICES)
def test_a_program_that_is_not_changed_gains_nothing(name: str, now: float, machine: Peaks) -> None:
    line, device = _device(name, machine)
    assert predict(line, line.calls, IsolatedCosts(), device, now=now * line.wall) == (pytest.approx(1.0, abs=1e-9), 0)


@pytest.mark.parametrize("name", ["cpu", "large"])
def test_torchs_own_kernel_costs_what_it_cost_in_the_original(name: str, machine: Peaks) -> None:
    """Whatever it took when it was timed by itself: the same function runs as before."""
    line, device = _device(name, machine)
    calls = [_renamed(c, "kernelworks::gelu") if c.name == "aten::gelu" else c for c in line.calls]
    kinds = {("kernelworks::gelu", signature(c), ()) for c in calls if c.name == "kernelworks::gelu"}
    costs = dict.fromkeys(kinds, Cost(1.0, (1.0,)))
    assert predict(line, calls, IsolatedCosts(costs, kinds), device) == (pytest.approx(1.0), 0)
    assert predict(line, calls, IsolatedCosts(costs), device).share > 10


def _renamed(call: Call, name: str) -> Call:
    return dataclasses.replace(call, name=name)


def test_a_kernel_of_torchs_that_the_original_does_not_call_is_timed() -> None:
    """A gate is two functions of torch's: its cost is what the kernel takes, not a bound."""
    import kernelworks as kw

    x = torch.randn(8, 64)
    with Capture({}) as capture:
        torch.ops.kernelworks.silu_mul(x, x, "torch")
    alone = time_isolated(capture.captured)
    assert kw.silu_mul is not None and alone.torchs == set(alone.costs) != set()


def test_calls_that_differ_in_a_string_alone_are_timed_apart(machine: Peaks) -> None:
    """A causal attention is not one that sees every key; where none of its strings was timed, one of its shapes is."""
    line, device = _device("cpu", machine)
    shapes = (((32, 64), "float32"),)
    alone = IsolatedCosts(
        {("kernelworks::gelu", shapes, (word,)): Cost(us * 1e-6) for word, us in (("none", 50), ("tanh", 10))}
    )

    def share(*words: tuple[str, str]) -> float:
        call = _call("kernelworks::gelu", 0, 0)
        call.place = dataclasses.replace(call.place, words=words)
        return predict(line, [call, line.calls[1]], alone, device).share

    assert share(("approximate", "none")) - share(("approximate", "tanh")) == pytest.approx(40 / 400)
    assert share(("approximate", "other"), ("op_kernel", "avx2")) in (
        share(("approximate", "none")),
        share(("approximate", "tanh")),
    )


def test_backward_calls_and_their_gaps_are_known_apart(machine: Peaks) -> None:
    """A product of one shape takes longer backwards, and autograd has no Python between ops."""
    forward = [_call("aten::mm", 20 * i, 20 * i + 10) for i in range(1, 4)]
    backward = [_call("aten::mm", 75 + 41 * i, 75 + 41 * i + 40, backward=True) for i in range(3)]
    line, device = _on_cpu(*forward, *backward, end=240), Cpu(machine, FLOORS, 2)
    tail = 240 - (75 + 2 * 41 + 40)
    assert predict(line, forward, IsolatedCosts(), device).share == pytest.approx((70 + tail) / 240, rel=0.02)


@pytest.mark.parametrize("name", ["cpu", "tiny"])
def test_a_call_that_nothing_was_timed_like_takes_its_bound_over_its_usual_share(
    name: str, machine: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours or torch's, and the host's part of it is that of calls of its op."""
    line, device = _device(name, machine)
    first = line.calls[0]
    unseen = dataclasses.replace(first, shapes=[[1 << 12, 1 << 12]], strides=[[1 << 12, 1]], items=None)
    asked: list[float] = []
    real: Callable[[Device, Call, float], Cost] = type(device).at_its_bound
    monkeypatch.setattr(
        type(device), "at_its_bound", lambda self, call, host: asked.append(host) or real(self, call, host)
    )
    mine = [ran.host for ran in line.entries() if ran.call.name == first.name]
    for call in (unseen, _renamed(unseen, "kernelworks::gelu")):
        found = predict(line, [*line.calls, call], IsolatedCosts(), device)
        assert found.share > 1 and found.unknown == (call.name != first.name)
    assert asked[0] == pytest.approx(sum(mine) / len(mine))


# ---------------------------------------------------------------- a whole diagnosis on a GPU that is played by records


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU whose timeline was recorded and whose kernels take a microsecond; the names of the calls that are timed."""
    asked: list[str] = []

    def timed(call: Call, *given: object, **named: object) -> Cost:
        asked.append(call.name)
        return Cost(5e-6, (1e-6,))

    for name, value in (("synchronize", None), ("empty_cache", None), ("max_memory_allocated", 1 << 30)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(sys.modules["kernelworks.diagnose"], "uses_gpu", lambda run: True)
    monkeypatch.setattr(sys.modules["kernelworks.profile.on_gpu"], "observe", lambda *given, **named: timeline("tiny"))
    remade = sys.modules["kernelworks.diagnose.forecast.isolated_on_gpu"]
    monkeypatch.setattr(remade, "_timed", timed)
    monkeypatch.setattr(remade, "_learned", lambda call, words: None)
    monkeypatch.setattr(remade, "_takes_torchs", lambda call, words: call.name.endswith("gelu"))
    return asked


def test_a_fix_on_a_gpu_is_predicted_as_on_a_cpu(played: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compile._Optimization, "candidates", lambda self, scene: ())  # which takes its time
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval(), torch.randn(32, 64)
    with torch.no_grad():
        found = diagnose(model, x, fix=True, peaks=gpu(), budget_s=0.3, fix_s=120.0)
    assert tuple(found.time_breakdown) == tuple(part for part in Gpu.parts if part != WITHOUT_PEAKS)
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)
    assert found.gpu is not None and found.fix is not None
    assert not found.fix.refused.startswith("it could not be carried out"), found.fix.refused
    assert any("peak device memory 1.07 GB before, 1.07 GB after" in note for note in found.fix.notes)
    assert sorted(played) == ["kernelworks::gelu", "kernelworks::linear"]


def test_calls_that_the_budget_does_not_allow_are_left_out_the_least_frequent_first(played: list[str]) -> None:
    from kernelworks.diagnose.forecast.isolated_on_gpu import Words, time_isolated

    often = [_call("kernelworks::gelu", i, i + 1) for i in range(3)]
    once, backward = _call("kernelworks::softmax", 4, 5), _call("kernelworks::gelu_backward", 6, 7, backward=True)
    found = time_isolated([backward, once, *often], Words(), 1 << 20)
    assert played == ["kernelworks::gelu", "kernelworks::softmax", "kernelworks::gelu_backward"]
    assert {name for name, *_ in found.costs} == set(played) and {name for name, *_ in found.torchs} == {played[0]}
    assert not time_isolated([backward, once, *often], Words(), 1 << 20, budget_s=-1.0).costs
