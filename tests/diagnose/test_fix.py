"""What a fix does: finds the modules, compares with float64, predicts, measures in turns, and gives everything back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose import diagnose
from kernelworks.diagnose.account.on_cpu import Cpu
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.isolated_on_cpu import Capture, time_isolated
from kernelworks.diagnose.forecast.isolated_on_gpu import Words
from kernelworks.diagnose.forecast.predict import Forecast, predict
from kernelworks.diagnose.optimizations import torch_compile
from kernelworks.diagnose.sites.modules import Roots, SwappedModules, find_roots
from kernelworks.diagnose.snapshot import to_float64
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.diagnose.verify.answers import tensors
from kernelworks.diagnose.verify.precision import PerturbedRounding
from kernelworks.profile.on_cpu import fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.program import Program
from kernelworks.profile.timeline import Cost
from kernelworks.profile.trace import Call, Place, Trace
from kernelworks.records import Peaks

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)


@pytest.fixture(scope="session")
def machine(ceilings: Peaks) -> Peaks:
    return dataclasses.replace(ceilings, cache_bytes={"L3": 32 << 20})


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 128)
        self.act = nn.GELU()
        self.down = nn.Linear(128, 64)

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Tensor:
        y = x + self.down(self.act(self.up(self.norm(x))))
        return y if scale is None else y * scale


@pytest.fixture
def model() -> Block:
    torch.manual_seed(0)
    return Block().eval()


X = torch.randn(32, 64)


def test_roots_are_the_outermost_modules(model: Block) -> None:
    call = nn.Module.__call__
    scale = torch.ones(64)

    def program() -> None:
        with torch.no_grad():
            for i in range(3):
                model(X + i, scale=scale)
        scale.add_(1.0)  # later changes do not reach the copies

    roots = find_roots(program)
    assert roots.modules == (model,) and not roots.fresh
    assert len(roots.samples) == 2  # the first call and the last
    assert torch.equal(roots.samples[1].args[0], X + 2)
    assert nn.Module.__call__ is call


def test_fresh_modules_are_swapped_as_they_come(model: Block) -> None:
    def program() -> Tensor:
        with torch.no_grad():
            return copy.deepcopy(model)(X)

    roots = find_roots(program)
    assert roots.fresh
    with SwappedModules(roots) as swapped:
        program()
        assert len(swapped.swaps) == 1 and swapped.swaps[0].replaced
        assert swapped.seconds_spent > 0
    assert not swapped.swaps


def test_swapped_gives_back_what_it_took_even_after_an_error(model: Block) -> None:
    before = model(X)
    with pytest.raises(KeyError), SwappedModules(Roots((model,), (), False)):
        assert "forward" in model.up.__dict__
        raise KeyError
    assert "forward" not in model.up.__dict__
    assert torch.equal(model(X), before)


def test_agreement_with_float64(model: Block) -> None:
    def program() -> None:
        with torch.no_grad():
            model(X)

    found = compare(find_roots(program).samples)
    assert found.agrees and not found.note
    assert 0 < found.before < 1e-6 and found.after <= 3 * found.before + 2**-24


def test_disagreement_is_seen(model: Block) -> None:
    """A swap that loses the bias of one layer."""

    @contextlib.contextmanager
    def broken(module: Any) -> Iterator[None]:
        kept, module.down.bias.data = module.down.bias.data, torch.zeros(64)
        yield
        module.down.bias.data = kept

    assert not compare(find_roots(lambda: model(X)).samples, changed=broken).agrees


def test_statistics_of_a_batch_are_sums_of_terms_larger_than_they() -> None:
    """Summed in another order the mean of what averages out is another one, by far more than a rounding of it."""
    norm, moved = nn.BatchNorm2d(3, momentum=1.0), nn.BatchNorm2d(3, momentum=1.0)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x -= x.mean((0, 2, 3), keepdim=True)
    norm(x).sum().backward()
    with PerturbedRounding(0):
        moved(x).sum().backward()
    mean, other = norm.running_mean, moved.running_mean
    assert mean is not None and other is not None
    assert 1e-7 < float((mean - other).abs().max()) < 1e-4
    assert not torch.equal(norm.running_var, moved.running_var)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def off_by(size: float) -> Iterator[None]:
        def add(module: Any, args: Any, output: Any) -> None:
            module.running_mean += size

        handle = norm.register_forward_hook(add)
        yield
        handle.remove()

    with torch.no_grad():
        samples = find_roots(lambda: norm(x)).samples
    assert compare(samples, changed=lambda module: off_by(1e-7)).agrees
    assert not compare(samples, changed=lambda module: off_by(1e-2)).agrees


def test_no_module_no_verification() -> None:
    assert compare(()).note == "not compared: no module was called"


def test_caches_are_widened_too() -> None:
    class Cache:
        def __init__(self) -> None:
            self.layers = [{"keys": torch.ones(2, dtype=torch.bfloat16)}]
            self.ids = torch.ones(2, dtype=torch.int64)

    cache = Cache()
    wide = to_float64((cache, 3))[0]
    assert wide.layers[0]["keys"].dtype is torch.float64 and wide.ids.dtype is torch.int64
    assert cache.layers[0]["keys"].dtype is torch.bfloat16
    assert [t.dtype for t in tensors({"a": torch.ones(1), "b": (torch.ones(1).int(),)})] == [torch.float32]


def test_replay_times_each_kind_of_call(model: Block) -> None:
    capture = Capture({})
    with torch.inference_mode(), SwappedModules(Roots((model,), (), False)):
        model(X)
        with capture:
            model(X)
    assert {c.op.name for c in capture.captured} == {"layer_norm", "linear", "gelu"}
    costs = time_isolated(capture.captured).costs
    assert len(costs) == 4 and all(cost.host > 0 for cost in costs.values())


def test_words_that_the_profiler_does_not_record(model: Block) -> None:
    x = X.clone().requires_grad_()
    with SwappedModules(Roots((model,), (), False)), Words() as words:
        model(x).sum().backward()
    assert words.found["kernelworks::gelu", ((32, 128),)] == {1: "none"}
    needs = words.found["kernelworks::linear_backward", ((32, 64), (32, 128), (64, 128))]
    assert list(needs.values()) == [[True, True, True]]


def test_prediction_adds_up(machine: Peaks) -> None:
    us = 1000

    def call(name: str, start: int, end: int) -> Call:
        return Call(
            name, start * us, end * us, shapes=[[32, 64]], strides=[[64, 1]], dtypes=[torch.float32], scalars=[None],
            place=Place("M", "m.py:1", 0, "M"),
        )  # fmt: skip

    trace = Trace(0, 400 * us, [call("aten::gelu", 10, 110), call("aten::relu", 120, 220)], 2, 0, None)
    timeline = fit_timeline(400e-6, [trace], trace, FLOORS)
    swapped = [call("kernelworks::gelu", 0, 0), call("aten::relu", 0, 0)]
    alone = IsolatedCosts({("kernelworks::gelu", (((32, 64), "float32"),), ()): Cost(30e-6)})
    found = predict(timeline, swapped, alone, Cpu(machine, FLOORS, 2), faults=0)
    ours, kept, gaps, tail = 30, 100, 10 + 10, 180
    assert found == (pytest.approx((ours + kept + gaps + tail) / 400), 0)
    unseen = predict(timeline, swapped, IsolatedCosts(), Cpu(machine, FLOORS, 2), faults=0)
    assert unseen.unknown == 1 and (kept + gaps + tail) / 400 < unseen.share < found.share


def test_fix_of_a_whole_program(model: Block, machine: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    real, shares = Forecaster.forecast, list[float]()

    def hopeful(*args: Any) -> Forecast:
        """Beyond any noise, which of a program of 100 us is at times more than what a swap brings."""
        shares.append(real(*args).share)
        return Forecast(0.0, 0)

    monkeypatch.setattr(Forecaster, "forecast", hopeful)
    monkeypatch.setattr(torch_compile._Optimization, "candidates", lambda self, scene: ())  # which takes its time
    with torch.no_grad():
        before = model(X)
        found = diagnose(model, X, fix=True, peaks=machine, budget_s=0.5, fix_s=60.0)
        assert torch.equal(model(X), before)
    fix = found.fix
    assert fix is not None and fix.agrees, [(r.optimization, r.says, r.why) for r in fix.optimizations]
    assert len(shares) == 1 and 0 < shares[0] < math.inf  # how much is the machine's of this moment
    assert fix.gain_s == pytest.approx(fix.before_s - fix.after_s)
    swapped = fix.optimizations[0]
    assert swapped.optimization == "swap" and swapped.against == "float64" and swapped.gain_s is not None
    assert swapped.applied == ("Linear up: linear" in fix.replaced)
    assert any(one.applied for one in fix.optimizations) == bool(fix.rounds)
    assert "forward" not in model.up.__dict__


def test_fix_of_a_program_without_modules(machine: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "seconds", lambda program: 1.0)  # of two microseconds anything may be a gain
    found = diagnose(lambda: X + X, fix=True, peaks=machine, budget_s=0.1).fix
    assert found is not None and not found.rounds and not found.plan
    (swap,) = (one for one in found.optimizations if one.optimization == "swap")
    assert "the program calls no torch.nn.Module: nothing to swap" in swap.why


def test_what_looks_at_a_swapped_program_sees_our_calls(model: Block, machine: Peaks) -> None:
    trace = Trace(0, 1000, [Call("aten::relu", 0, 1000)], 1, 0, None)
    forecaster = Forecaster(fit_timeline(1e-6, [trace], trace, FLOORS), Cpu(machine, FLOORS, 1), 1.0)
    with torch.no_grad(), SwappedModules(Roots((model,), (), False)):
        seen = forecaster.survey(Program("", lambda: model(X)))
    names = {call.name for call in seen.trace.calls}
    assert {f"kernelworks::{op}" for op in ("linear", "gelu", "layer_norm")} <= names
    assert {c.op.name for c in seen.capture.captured} >= {"linear", "gelu", "layer_norm"}
