"""Gradients between a backward and a step: clipped by norm, filled with zeros or given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from remedied import Case, X, counted, net, offers, scene_of, trained
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from kernelworks.diagnose.remedies import gradient_clipping, zeroed_gradients
from kernelworks.diagnose.remedies.gradient_clipping import FOREACH, SCALED, Clipping, clippings
from kernelworks.diagnose.remedies.remedy import Impossible, Scene


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
    for arm in (False, True):
        for p in parameters:
            p.grad = torch.full_like(p, 0.5)
        change = gradient_clipping.REMEDY.apply(Scene(None), made(SCALED))  # type: ignore[arg-type]
        if arm:
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
    return gradient_clipping.REMEDY._offer(how)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_norms_that_are_no_numbers_spread_as_they_do(value: float) -> None:
    parameter = nn.Parameter(torch.ones(4))
    with gradient_clipping.REMEDY.apply(Scene(None), made(SCALED)):  # type: ignore[arg-type]
        parameter.grad = torch.tensor([1.0, 2.0, value, 3.0])
        clip_grad_norm_([parameter], 1.0)
        got = parameter.grad.clone()
        parameter.grad = torch.tensor([1.0, 2.0, value, 3.0])
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
    parameter.grad = torch.tensor([1.0, 2.0, value, 3.0])
    clip_grad_norm_([parameter], 1.0)
    torch.testing.assert_close(got, parameter.grad, equal_nan=True)


def test_what_is_clipped_is_seen_and_raced() -> None:
    case = trained(net(), clip=1e3)
    (seen,) = clippings(case.run)
    assert not seen.clipped and seen.norm_type == 2.0 and seen.foreach is None and not seen.checked
    assert len(seen.gradients) == len(list(case.model.parameters())) and seen.kinds == {"cpu"}
    assert seen.nbytes == sum(p.nbytes for p in case.model.parameters())
    (clipped,) = clippings(trained(net(), clip=1e-4).run)
    assert clipped.clipped
    scene = scene_of(case)
    (offer,) = offers(gradient_clipping.REMEDY, scene)
    promise = gradient_clipping.REMEDY.predict(scene, offer)
    assert promise.saves is not None and abs(promise.saves) < 1
    assert gradient_clipping.REMEDY.apply(scene, offer).proved


def test_on_a_gpu_what_waits_is_advice_and_what_is_launched_one_by_one_is_changed() -> None:
    """Played: the sizes alone are seen."""
    on_gpu = (((torch.Size([4]), torch.float32, torch.device("cuda")),), 2.0)
    scene = scene_of(trained(net()))
    for checked, foreach, found in ((True, None, ["advice"]), (False, False, [FOREACH]), (False, None, [])):
        scene._kept["clippings"] = [Clipping(*on_gpu, checked, foreach, clipped=False)]
        given = list(gradient_clipping.REMEDY.offers(scene))
        assert [offer.option("how", "advice") for offer in given] == found and all(offer.code for offer in given)
    asked = []
    with gradient_clipping.REMEDY.apply(scene, made(FOREACH)):
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
    """Of those that are too many to copy some are raced, and the largest may be among them or not."""
    clock, plain = [0.0], torch.nn.utils.clip_grad.clip_grad_norm_

    def clip(parameters: Any, *more: Any) -> Tensor:
        clock[0] += sum(p.grad.nbytes for p in parameters)
        return plain(parameters, *more)

    monkeypatch.setattr(torch.nn.utils.clip_grad, "clip_grad_norm_", clip)
    monkeypatch.setattr(gradient_clipping, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(gradient_clipping, "MOST_BYTES", 1 << 12)
    for sizes in ((1000, 10, 10, 10, 500), (10, 10, 1000, 500)):
        seen = tuple((torch.Size([n]), torch.float32, torch.device("cpu")) for n in sizes)
        was, now = gradient_clipping._raced(Clipping(seen, 2.0, False, None, clipped=False), SCALED, lambda run: run)
        assert was == now == pytest.approx(4.0 * sum(sizes))


def test_clippings_that_lead_elsewhere_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(trained(net(), clip=1e3))
    (offer,) = offers(gradient_clipping.REMEDY, scene)
    monkeypatch.setattr(gradient_clipping, "_coefficient", lambda max_norm, total: 1.0)
    with pytest.raises(Impossible, match="than rounding explains"):
        gradient_clipping.REMEDY.predict(scene, offer)


class Beside(nn.Module):
    """One of its parameters is reached by no backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x.flatten()[:4])  # type: ignore[no-any-return]


@pytest.mark.parametrize("by_module", [False, True])
def test_what_no_backward_reaches_decays_as_it_did(by_module: bool) -> None:
    """Zeros decay a parameter and its momentum; None would have its optimizer pass it over."""

    def case() -> Case:
        model = Beside()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()

        def run() -> Tensor:
            (model if by_module else optimizer).zero_grad(set_to_none=False)
            loss: Tensor = model(X).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Case(model, run, optimizer)

    (ours, ran), theirs = counted(case()), case()
    scene = scene_of(ours)
    (offer,) = offers(zeroed_gradients.REMEDY, scene)
    for _ in ran:
        theirs.run()
    for _ in range(2):
        with zeroed_gradients.REMEDY.apply(scene, offer):
            before = [p.grad for p in ours.model.parameters()]
            ours.run()
            assert all(p.grad is not was for p, was in zip(ours.model.parameters(), before, strict=True))
        theirs.run()
    ours.run(), theirs.run()
    for (name, p), q in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_gradients_that_wait_for_a_backward_are_zeros_again_once_it_is_out() -> None:
    case = trained(net(), to_none=False)
    case.run()
    scene = scene_of(case)
    (offer,) = offers(zeroed_gradients.REMEDY, scene)
    with zeroed_gradients.REMEDY.apply(scene, offer):
        assert case.optimizer is not None
        case.optimizer.zero_grad(set_to_none=False)
        assert all(p.grad is None for p in case.model.parameters())
    assert all(p.grad is not None and not p.grad.any() for p in case.model.parameters())
    assert torch.optim.Optimizer.zero_grad.__name__ == "zero_grad"


def test_gradients_that_somebody_watches_are_filled_with_zeros() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.register_post_accumulate_grad_hook(lambda p: None)
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    back = zeroed_gradients.given_back()
    optimizer.zero_grad(set_to_none=False)
    back()
    assert parameter.grad is not None and not parameter.grad.any()
