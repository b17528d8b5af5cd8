"""Gradients between a backward and a step: clipped by norm, and ahead of one filled with zeros."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimization_stands import Case, X, candidates, net, scene_of, trained
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from kernelworks.diagnose.fix.plan import apply, as_plan
from kernelworks.diagnose.optimization import PROCESS, Candidate, Impossible, Scene
from kernelworks.diagnose.optimizations import gradient_clipping, zeroed_gradients
from kernelworks.diagnose.optimizations.gradient_clipping import FOREACH, SCALED, Clipping, clippings
from kernelworks.diagnose.optimizations.zeroed_gradients import seconds_of
from kernelworks.diagnose.sites.modules import Roots


def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By what gradients are multiplied, from then on."""
    found: list[float] = []
    multiply = torch._foreach_mul_

    def mul(tensors: Any, by: Any) -> None:
        found.append(float(by))
        multiply(tensors, by)

    monkeypatch.setattr(torch, "_foreach_mul_", mul)
    return found


@pytest.mark.parametrize(("most", "times"), [(1e3, 0), (1e-4, 1)])
def test_gradients_are_scaled_where_that_changes_one(most: float, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported by name, as many programs have it."""
    parameters = [nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(3, 2))]
    found = multiplied(monkeypatch)
    norms, gradients = [], []
    for variant in (False, True):
        for p in parameters:
            p.grad = torch.full_like(p, 0.5)
        change = gradient_clipping.OPTIMIZATION.apply(Scene(None), made(SCALED))  # type: ignore[arg-type]
        if variant:
            with change:
                norms.append(clip_grad_norm_(parameters, most))
        else:
            norms.append(clip_grad_norm_(parameters, most))
        gradients.append([p.grad.clone() for p in parameters if p.grad is not None])
    assert torch.equal(*norms) and all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert len(found) == 1 + times  # torch's own scales each time
    found.clear()
    clip_grad_norm_(parameters, 1e3)
    assert found == [1.0]


def made(how: str) -> Any:
    return gradient_clipping.OPTIMIZATION._candidate(how)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_norms_that_are_no_numbers_spread_as_they_do(value: float) -> None:
    parameter = nn.Parameter(torch.ones(4))
    with gradient_clipping.OPTIMIZATION.apply(Scene(None), made(SCALED)):  # type: ignore[arg-type]
        parameter.grad = torch.tensor([1.0, 2.0, value, 3.0])
        clip_grad_norm_([parameter], 1.0)
        got = parameter.grad.clone()
        parameter.grad = torch.tensor([1.0, 2.0, value, 3.0])
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
    parameter.grad = torch.tensor([1.0, 2.0, value, 3.0])
    clip_grad_norm_([parameter], 1.0)
    torch.testing.assert_close(got, parameter.grad, equal_nan=True)


def test_what_is_clipped_is_seen_and_benchmarked() -> None:
    case = trained(net(), clip=1e3)
    (seen,) = clippings(case.run)
    assert not seen.clipped and seen.norm_type == 2.0 and seen.foreach is None and not seen.checked
    assert len(seen.gradients) == len(list(case.model.parameters())) and seen.kinds == {"cpu"}
    assert seen.nbytes == sum(p.nbytes for p in case.model.parameters())
    (clipped,) = clippings(trained(net(), clip=1e-4).run)
    assert clipped.clipped
    scene = scene_of(case)
    (candidate,) = candidates(gradient_clipping.OPTIMIZATION, scene)
    promise = gradient_clipping.OPTIMIZATION.predict(scene, candidate)
    assert promise.saves is not None and abs(promise.saves) < 1
    assert gradient_clipping.OPTIMIZATION.apply(scene, candidate).verified_against


def test_on_a_gpu_what_waits_is_advice_and_what_is_launched_one_by_one_is_changed() -> None:
    """Played: the sizes alone are seen."""
    on_gpu = (((torch.Size([4]), torch.float32, torch.device("cuda")),), 2.0)
    scene = scene_of(trained(net()))
    for checked, foreach, found in ((True, None, ["advice"]), (False, False, [FOREACH]), (False, None, [])):
        scene._kept["clippings"] = [Clipping(*on_gpu, checked, foreach, clipped=False)]
        given = list(gradient_clipping.OPTIMIZATION.candidates(scene))
        assert [candidate.option("how", "advice") for candidate in given] == found and all(
            candidate.code for candidate in given
        )
    asked = []
    with gradient_clipping.OPTIMIZATION.apply(scene, made(FOREACH)):
        parameter = nn.Parameter(torch.ones(4))
        parameter.grad = torch.ones(4)
        foreach_norm = torch._foreach_norm
        torch._foreach_norm = lambda *args: asked.append(args) or foreach_norm(*args)
        try:
            clip_grad_norm_([parameter], 1.0, foreach=False)
        finally:
            torch._foreach_norm = foreach_norm
    assert asked


def test_large_gradients_are_counted_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are too many to copy some are benchmarked, and the largest may be among them or not."""
    clock, plain = [0.0], torch.nn.utils.clip_grad.clip_grad_norm_

    def clip(parameters: Any, *more: Any) -> Tensor:
        clock[0] += sum(p.grad.nbytes for p in parameters)
        return plain(parameters, *more)

    monkeypatch.setattr(torch.nn.utils.clip_grad, "clip_grad_norm_", clip)
    monkeypatch.setattr(gradient_clipping, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(gradient_clipping, "MOST_BYTES", 1 << 12)
    for sizes in ((1000, 10, 10, 10, 500), (10, 10, 1000, 500)):
        seen = tuple((torch.Size([n]), torch.float32, torch.device("cpu")) for n in sizes)
        was, now = gradient_clipping._race_clipping(
            Clipping(seen, 2.0, False, None, clipped=False), SCALED, lambda run: run
        )
        assert was == now == pytest.approx(4.0 * sum(sizes))


def test_clippings_that_lead_elsewhere_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(trained(net(), clip=1e3))
    (candidate,) = candidates(gradient_clipping.OPTIMIZATION, scene)
    monkeypatch.setattr(gradient_clipping, "_coefficient", lambda max_norm, total: 1.0)
    with pytest.raises(Impossible, match="than rounding explains"):
        gradient_clipping.OPTIMIZATION.predict(scene, candidate)


def filled(run: Callable[[], Any], wanted: bool) -> None:
    """Steps of a program, and whether zeros are seen in it."""
    case = Case(nn.Identity(), run)
    found = zeroed_gradients.zeroings(case.run)
    assert bool(found) is wanted
    assert all(each.source.startswith("test_gradients.py:") for each in found)


@pytest.mark.parametrize("by_module", [False, True])
def test_zeros_are_seen_with_their_line(by_module: bool) -> None:
    case = trained(net(), to_none=False)
    case.run()
    asking: Any = case.model if by_module else case.optimizer
    kept = [kind.__dict__["zero_grad"] for kind in zeroed_gradients.KINDS]
    filled(lambda: asking.zero_grad(set_to_none=False), wanted=True)
    filled(lambda: asking.zero_grad(False), wanted=True)
    filled(lambda: asking.zero_grad(), wanted=False)
    filled(lambda: asking.zero_grad(set_to_none=False), wanted=False)  # there are none by now
    assert kept == [kind.__dict__["zero_grad"] for kind in zeroed_gradients.KINDS]


def test_a_line_that_fills_gradients_with_zeros_is_told_with_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    case = trained(net(), to_none=False)
    case.run()
    nbytes = []

    def seconds(gradients: Any, whole: Any) -> float:
        nbytes.append(sum(shape.numel() * dtype.itemsize for shape, dtype, _ in gradients))
        return 2e-3

    assert seconds_of([(torch.Size([3]), torch.float32, torch.device("cpu"))] * 2, lambda run: run) > 0
    monkeypatch.setattr(zeroed_gradients, "seconds_of", seconds)
    scene = scene_of(case)
    (candidate,) = candidates(zeroed_gradients.OPTIMIZATION, scene)
    assert nbytes == [sum(p.nbytes for p in case.model.parameters())]
    assert "takes 2 of 10 ms a run" in candidate.advice and candidate.advice.startswith("optimization_stands.py:")
    assert zeroed_gradients.OPTIMIZATION.predict(scene, candidate).saves is None
    monkeypatch.setattr(zeroed_gradients, "seconds_of", lambda gradients, whole: 1e-5)
    assert candidates(zeroed_gradients.OPTIMIZATION, scene) == []


def flat() -> Callable[[], Any]:
    """Gradients are views of one buffer, which is read after the backward."""
    model = nn.Linear(4, 3)
    parameters = list(model.parameters())
    held = torch.zeros(sum(p.numel() for p in parameters))
    for p, part in zip(parameters, held.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)

    def run() -> Any:
        model.zero_grad(set_to_none=False)
        model(X.flatten()[:4]).square().sum().backward()
        return held.norm()

    return run


def listed() -> Callable[[], Any]:
    model = nn.Linear(4, 3)
    model(X.flatten()[:4]).sum().backward()
    gradients = [p.grad for p in model.parameters()]

    def run() -> Any:
        model.zero_grad(set_to_none=False)
        model(X.flatten()[:4]).square().sum().backward()
        return [g.clone() for g in gradients if g is not None]

    return run


def read(reading: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    """A program that reads gradients between the zeros and the backward."""
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(2, 2)])
    for p in model.parameters():
        p.grad = torch.ones_like(p)

    def run() -> Any:
        model.zero_grad(set_to_none=False)
        found = reading(model)
        model[0](X.flatten()[:4]).square().sum().backward()
        return found, [p.grad for p in model.parameters()]

    return run


def added(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad += 0.5


HOLD_OR_READ: dict[str, Callable[[], Callable[[], Any]]] = {
    "one buffer": flat,
    "a list": listed,
    "norms": lambda: read(lambda m: [p.grad.norm() for p in m.parameters()]),  # type: ignore[union-attr]
    "a sum": lambda: read(added),
    "a count": lambda: read(lambda m: sum(p.grad is not None for p in m.parameters())),
    "a copy": lambda: read(lambda m: [p.grad for p in copy.deepcopy(m).parameters()]),
    "an update by hand": lambda: read(lambda m: [p.data.sub_(p.grad) for p in m.parameters()]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", HOLD_OR_READ)
def test_who_holds_or_reads_gradients_keeps_them(name: str) -> None:
    """A plan of old, which gave gradients back, is not put in place: it says why."""
    torch.manual_seed(0)
    plain = [copy.deepcopy(answer) for answer in (lambda run: [run() for _ in range(3)])(HOLD_OR_READ[name]())]
    torch.manual_seed(0)
    run = HOLD_OR_READ[name]()
    plan = as_plan(
        [Candidate("zeroed gradients", PROCESS, "gradients given back")], Roots((), (), fresh=True), program="p",
        kind="x",
        saves=None,
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="not applied: zeroed gradients.*set_to_none"), apply(plan) as applied:
        assert not applied.done
        changed = [copy.deepcopy(run()) for _ in range(3)]
    torch.testing.assert_close(changed, plain, rtol=0.0, atol=0.0)
