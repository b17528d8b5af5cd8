"""What is promised is predicted, and before and after are of one minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.climb.command import verdict
from kernelworks.diagnose.account.on_cpu import Cpu
from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.isolated_on_cpu import Capture, time_isolated
from kernelworks.diagnose.forecast.predict import predict
from kernelworks.diagnose.sites.modules import Roots, SwappedModules
from kernelworks.dispatch.op import OPS
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.on_cpu import CpuTimeline, fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.recording import record
from kernelworks.profile.timeline import Cost
from kernelworks.profile.trace import Call, Place, Trace
from kernelworks.records import Peaks
from kernelworks.records.climb import RungResult

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)
US = 1000  # ns


def _call(name: str, start: int, end: int, shape: Sequence[int] = (32, 64), faults: int = 0, **more: Any) -> Call:
    return Call(
        name, start * US, end * US, shapes=[list(shape)], strides=[[shape[-1], 1]], dtypes=[torch.float32],
        scalars=[None], place=Place("M", "m.py:1", faults, "M"), **more,
    )  # fmt: skip


def _timeline(*calls: Call, end: int) -> CpuTimeline:
    trace = Trace(0, end * US, list(calls), len(calls), 0, None)
    return fit_timeline(end * 1e-6, [trace], trace, FLOORS, faults=sum(c.place.faults for c in calls))


# ---------------------------------------------------------------- before and after are of one minute

PROGRAMS = {
    "calls and gaps": _timeline(_call("aten::gelu", 10, 110), _call("aten::relu", 120, 220), end=400),
    "one call": _timeline(_call("aten::gelu", 0, 400), end=400),
    "page faults": _timeline(
        _call("aten::gelu", 10, 110, faults=50), _call("aten::relu", 150, 220, freed=1 << 20), end=400
    ),
    "calls of ours": _timeline(_call("kernelworks::gelu", 10, 200), _call("aten::relu", 220, 300), end=310),
    "alike, not equal": _timeline(*(_call("aten::add", 50 * i, 60 * i, (i, 64)) for i in range(1, 5)), end=260),
}  # fmt: skip


@pytest.mark.parametrize("now", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_not_changed_gains_nothing(name: str, now: float, ceilings: Peaks) -> None:
    """Whatever it takes today: the machine was slower or faster when the timeline was made."""
    line = PROGRAMS[name]
    cpu = Cpu(ceilings, FLOORS, 2)
    found = predict(
        line, line.calls, IsolatedCosts(), cpu, freed=line.freed, faults=line.faults or 0, now=now * line.wall
    )
    assert found.share == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("pace", [0.5, 1.0, 2.0])
def test_a_machine_at_another_pace_predicts_the_same_share(pace: float, ceilings: Peaks) -> None:
    """Replays and what is kept are both of this minute, so a machine at half speed changes no share."""
    line = PROGRAMS["calls and gaps"]
    calls = [_call("kernelworks::gelu", 0, 0), _call("aten::relu", 0, 0)]
    alone = IsolatedCosts({("kernelworks::gelu", (((32, 64), "float32"),), ()): Cost(30e-6 * pace)})
    found = predict(line, calls, alone, Cpu(ceilings, FLOORS, 2), faults=0, now=pace * line.wall)
    assert found.share == pytest.approx(330 / 400)


def test_a_swap_that_takes_torchs_kernels_gains_nothing(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the minute is like: the same functions run as before."""
    from kernelworks.dispatch import certificates

    reason = lambda op, kernel, kind=None: "not verified" if kernel.source else None  # noqa: E731
    monkeypatch.setattr(certificates, "invalid_reason", reason)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU()).eval(), torch.randn(16, 64)
    for op in OPS.values():
        op.forget()

    def program() -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    def surveyed() -> Trace:
        return record(program, survey=Survey())

    before = surveyed()
    line = fit_timeline(1e-3, [before], before, FLOORS)
    with SwappedModules(Roots((model,), (), False)):
        after = surveyed()
        with Capture({}) as capture:
            program()
    for op in OPS.values():
        op.forget()
    alone = time_isolated(capture.captured)
    assert alone.torchs == set(alone.costs) and len(alone.torchs) == 3
    assert any(c.name.startswith("kernelworks::") for c in after.calls)
    found = predict(line, after.calls, alone, Cpu(ceilings, FLOORS, 1), freed=after.freed, faults=0, now=2e-3)
    assert found.share == pytest.approx(1.0, abs=1e-6) and found.unknown == 0


def test_the_backward_of_a_swapped_module_is_replayed() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.GELU()), torch.randn(16, 64)
    with SwappedModules(Roots((model,), (), False)), Capture({}) as capture:
        model(x).sum().backward()
    names = {c.name for c in capture.captured}
    assert names == {f"kernelworks::{op}{of}" for op in ("linear", "gelu") for of in ("", "_backward")}
    costs = time_isolated(capture.captured).costs
    assert {name for name, *_ in costs} == names
    assert all(cost.host > 0 for cost in costs.values())


# ---------------------------------------------------------------- a climb without a figure is no success


def _rung(number: int, status: str, times: int = 0) -> RungResult:
    return RungResult(
        number, f"{number:02}.cpp", "", "", "", "", "", None, status, "why", None, times=(None,) * times, gain=None,
        loads={}, shares={}, bottleneck="", assembly=(),
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("rungs", "what"),
    [
        ([_rung(1, "verified", 1), _rung(2, "verified", 2)], ""),
        ([_rung(1, "verified", 1), _rung(2, "not run")], ""),
        ([_rung(1, "verified", 1), _rung(2, "ambiguous")], "ambiguous"),
        ([_rung(1, "ambiguous"), _rung(2, "wrong")], "wrong"),
        ([_rung(1, "not run")], "no figure"),
    ],
)
def test_a_climb_without_a_figure_does_not_exit_with_0(rungs: list[RungResult], what: str) -> None:
    found = verdict(rungs)
    assert found.what == what and bool(found.said) == bool(what)
    assert not what or what in found.said or "no rung has a figure" in found.said
