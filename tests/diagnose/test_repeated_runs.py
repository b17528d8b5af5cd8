"""A program is run many times: its first run comes before anything long, and a later run that raises is told apart."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from eligible import KERNELS, only
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.cli.console import guard_program
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.forecast import isolated_on_cpu
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.forecast.isolated_on_cpu import Capture, time_isolated
from kernelworks.diagnose.optimizations.swap import OPTIMIZATION
from kernelworks.diagnose.sites.modules import SwappedModules, find_roots
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.nn.swap import swap
from kernelworks.records import Diagnosis, Peaks

X = torch.ones(64, 64)


def diagnosed(fn: Callable[..., Any], *, peaks: Peaks) -> Diagnosis:
    return kw.diagnose(fn, peaks=peaks, budget_s=0.05, rough=True)


@pytest.mark.parametrize("kind", ["generator", "async generator"])
def test_a_generator_without_an_end_is_refused_with_a_word(
    kind: str, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers() -> Iterator[Tensor]:
        while True:
            yield X + X

    async def promised() -> AsyncIterator[Tensor]:
        while True:
            yield X + X

    monkeypatch.setattr(sys.modules["kernelworks.profile.program"], "ENDLESS_S", 0.05)
    with pytest.raises(RuntimeError, match=r"generator that gave [1-9]\d* items in .* s and has not ended"):
        diagnosed(numbers if kind == "generator" else promised, peaks=ceilings)


def test_a_first_run_that_does_not_end_is_spoken_of(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["kernelworks.profile.timeline"], "ENDLESS_S", 0.05)
    told: list[str] = []
    kw.diagnose(lambda: time.sleep(0.2), peaks=ceilings, budget_s=0.05, rough=True, progress=told.append)
    assert sum("has not ended" in line for line in told) == 1


@pytest.mark.parametrize(("on_cuda", "takes"), [(False, "A run takes 1 s"), (True, "A run takes 0 s")])
def test_what_a_run_takes_is_not_told_from_one_that_makes_a_context(
    on_cuda: bool, takes: str, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, told = [1.0], list[str]()
    package = sys.modules["kernelworks.diagnose"]
    monkeypatch.setattr(package, "_has_context", lambda: on_cuda)
    monkeypatch.setattr(package, "uses_gpu", lambda run: bool(run()))
    monkeypatch.setattr(package, "WORTH_SAYING_S", 0.0)
    program = lambda: time.sleep(left.pop() if left else 0.0)  # noqa: E731
    kw.diagnose(program, peaks=ceilings, budget_s=0.05, rough=True, progress=told.append)
    assert [line.partition(".")[0] for line in told if "more are made" in line] == [takes]


def test_a_program_that_raises_does_so_before_anything_long_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*args: object, **named: object) -> Any:
        raise AssertionError("measured before the program had run")

    monkeypatch.setattr(sys.modules["kernelworks.diagnose"], "measured_peaks", measured)
    monkeypatch.setattr(sys.modules["kernelworks.diagnose"], "uses_gpu", measured)
    monkeypatch.setattr(sys.modules["kernelworks.profile.overhead"], "measure", measured)
    with pytest.raises(KeyError, match="mine") as caught:
        kw.diagnose(lambda: {}["mine"])
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("run", [2, 4, 7])
def test_what_a_later_run_raises_says_that_earlier_ones_ended_well(run: int, ceilings: Peaks) -> None:
    left = iter([X] * (run - 1))  # for sums: a product's threads may wait for a core until the budget is over
    with pytest.raises(StopIteration) as caught:
        diagnosed(lambda: next(left) + X, peaks=ceilings)
    (note,) = caught.value.__notes__
    assert f"ran {run - 1} time" in note and "several times" in note


@pytest.mark.thorough  # seconds of a real budget
def test_a_fix_of_very_many_calls_keeps_its_own_share_of_the_budget(
    ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at a call costs 20 to 200 us: the swapped program's are not all looked at, and all are predicted."""
    module, x, most = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.ones(2, 8), 64
    seen: list[tuple[bool, int]] = []
    forecast = Forecaster.forecast

    def program() -> Tensor:
        y = x
        with torch.no_grad():
            for _ in range(200):
                y = module(y)
        return y

    def spied(forecaster: Forecaster, program: Any, roots: Any, surveyed: Any) -> Any:
        seen.append((forecaster.survey(program).trace.cut, len(surveyed.trace.calls)))
        return forecast(forecaster, program, roots, surveyed)

    monkeypatch.setattr(sys.modules["kernelworks.profile.timeline"], "LEAST_SURVEYED", most)
    monkeypatch.setattr(sys.modules["kernelworks.profile.timeline"], "SURVEY_S", 1.0)
    monkeypatch.setattr(Forecaster, "forecast", spied)
    swaps = functools.partial(Search, optimizations=(OPTIMIZATION,))  # other optimizations would take of the budget
    monkeypatch.setattr(sys.modules["kernelworks.diagnose"], "Search", swaps)
    found = kw.diagnose(program, fix=True, peaks=ceilings, budget_s=2.0, rough=True, fix_s=8.0).fix
    assert found is not None and found.agrees and not found.refused.startswith("it could not")
    ((cut, calls),) = seen
    assert cut and calls >= 400


def test_replays_and_comparisons_stop_when_their_budget_is_over() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.ones(2, 8)

    def program() -> None:
        with torch.no_grad():
            module(x)
            module(x + 1)

    roots = find_roots(program)
    found = compare(roots.samples, 0.0)
    assert len(roots.samples) == 2 and found.agrees
    assert "Sequential was compared on its first call alone, as the budget allows" in found.note
    with SwappedModules(roots), Capture({}) as capture:
        program()
    assert capture.captured and len(time_isolated(capture.captured, 0.0).costs) >= 1


@pytest.mark.parametrize("json", [True, False])
def test_a_program_that_closes_its_stdout_does_not_close_ours(json: bool) -> None:
    before = sys.stdout, sys.stderr
    with guard_program(json=json):
        sys.stdout.write("")
        sys.stdout.close()
    assert (sys.stdout, sys.stderr) == before and not sys.stdout.closed and not sys.stderr.closed


def test_a_capture_leaves_the_program_alone_when_its_budget_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the program's next call of a module; what it met before is kept, and the module's call is put back."""
    layer, x, seen = torch.nn.GELU(), torch.ones(4, 8), list[int]()
    before = torch.nn.Module.__call__
    monkeypatch.setattr(isolated_on_cpu, "time", SimpleNamespace(perf_counter=lambda: 0.02 * len(seen)))

    def program() -> None:
        for _ in range(5):
            layer(x)
            seen.append(torch._C._len_torch_dispatch_stack())

    for budget_s, watched in ((0.03, [1, 1, 0, 0, 0]), (9.0, [1] * 5)):
        seen.clear()
        with swap(layer, verbose=False), only(KERNELS[-1]), Capture({}, budget_s) as capture, torch.no_grad():
            program()
        assert seen == watched
        assert len(capture.captured) == sum(seen)
        assert torch.nn.Module.__call__ is before and not torch._C._len_torch_dispatch_stack()


def test_capture_leaves_no_program_in_inference_mode() -> None:
    """Leaving inference mode puts back how torch dispatched when it was entered, with whatever mode was there then."""
    layer, x = nn.Linear(4, 4), torch.ones(1, 4)
    with Capture({}, budget_s=0.0):
        with torch.inference_mode():
            layer(x)
        assert torch.equal(x + x, 2 * torch.ones(1, 4))
        layer(x)
    assert torch.equal(x + x, 2 * torch.ones(1, 4))
