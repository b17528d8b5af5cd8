"""Each optimization on small programs: where it is a candidate and where not, that answers stay what they were, and
that nothing is left of it when it is taken out again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimization_stands import Case, Net, asked, attending, candidates, counted, looks, net, scene_of, trained
from torch import Tensor, nn

from kernelworks.diagnose.fix.plan import apply, as_plan
from kernelworks.diagnose.optimization import Change, CombinedChange, Impossible, Optimization, Scene
from kernelworks.diagnose.optimizations import (
    cast_weights,
    channels_last,
    fewer_bits,
    folded_norms,
    fused_optimizer,
    gradient_clipping,
    merged_projections,
    swap,
    torch_compile,
    trial,
    zeroed_gradients,
)
from kernelworks.diagnose.sites.modules import Roots, find_roots
from kernelworks.profile.budget import Budget
from kernelworks.records.fix import MODULES_MADE_ANEW


def of_inference(make: Callable[[], nn.Module]) -> nn.Module:
    """Made where nobody counts what is written."""
    with torch.inference_mode():
        return make()


# An optimization, a program that it is for, and the number of candidates.
HITS: dict[str, tuple[Optimization, Callable[[], Case], int]] = {
    "channels last, asked": (channels_last.OPTIMIZATION, lambda: asked(net()), 1),
    "channels last, trained": (channels_last.OPTIMIZATION, lambda: trained(net(), momentum=0.9), 1),
    "channels last, Adam": (channels_last.OPTIMIZATION, lambda: trained(net(), torch.optim.Adam, eps=0.01), 1),
    "channels last, inference mode": (channels_last.OPTIMIZATION, lambda: asked(of_inference(net)), 1),
    "folded norms": (folded_norms.OPTIMIZATION, lambda: asked(net()), 1),
    "folded norms, autocast": (folded_norms.OPTIMIZATION, lambda: asked(net(), autocast=True), 1),
    "weights cast once": (cast_weights.OPTIMIZATION, lambda: asked(net(), autocast=True), 1),
    "merged projections": (merged_projections.OPTIMIZATION, lambda: asked(attending()), 1),
    "merged projections without bias": (merged_projections.OPTIMIZATION, lambda: asked(attending(bias=False)), 1),
    "fewer bits": (fewer_bits.OPTIMIZATION, lambda: asked(net()), 2),
    "fewer bits, trained": (fewer_bits.OPTIMIZATION, lambda: trained(net(), momentum=0.9), 1),
    "AdamW": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.AdamW, eps=0.01), 2),
    "Adam": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.Adam, amsgrad=True, eps=0.01), 1),
    "SGD": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), momentum=0.9), 2),
    "Adagrad": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.Adagrad, eps=0.01), 2),
    "RMSprop": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.RMSprop, eps=0.01, momentum=0.9), 1),
    "NAdam": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.NAdam, eps=0.01), 1),
    "clipped, never": (gradient_clipping.OPTIMIZATION, lambda: trained(net(), clip=1e3), 1),
}


LOOSE = {"autocast", "bits", "bits,"}  # words of those in fewer bits


@pytest.mark.parametrize("name", HITS)
def test_it_is_applied_and_undone_without_a_trace(name: str) -> None:
    optimization, make, number = HITS[name]
    (case, ran), plain = counted(make()), make()
    case.run()  # states of optimizers are made
    scene = scene_of(case)
    found = candidates(optimization, scene)
    for _ in ran:
        plain.run()
    assert len(found) == number and all(candidate.says and candidate.code for candidate in found)
    before = looks(case)
    for candidate in found:
        change = optimization.apply(scene, candidate)
        for _ in range(2):
            with change:
                got = case.run()
                keys = list(case.model.state_dict())
            expected = plain.run()
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=0.05 if LOOSE & set(name.split()) else 1e-5)
            assert keys == list(before.tensors)[: len(keys)]
    after = looks(case)
    grads = {n for n in before.tensors if n.startswith("grad")}  # made anew by each run
    assert {n: v for n, v in after.tensors.items() if n not in grads} == {
        n: v for n, v in before.tensors.items() if n not in grads
    }
    assert {n: after.tensors[n][2:] for n in grads} == {n: before.tensors[n][2:] for n in grads}
    assert (after.spaces, after.states, after.groups) == (before.spaces, before.states, before.groups)
    with torch.no_grad():
        for mine, theirs in zip(case.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3 if LOOSE & set(name.split()) else 1e-5)


def test_what_is_predicted_is_a_share_of_a_run() -> None:
    for name in ("channels last, asked", "folded norms", "weights cast once", "SGD"):
        optimization, make, _ = HITS[name]
        scene = scene_of(make())
        promise = optimization.predict(scene, candidates(optimization, scene)[0])
        assert promise.saves is not None and promise.saves < 1 and promise.how


def test_of_each_module_the_first_call_and_the_last_are_kept() -> None:
    """What a cache holds by the last call is more than by the first, whatever other modules the program calls."""
    reader, writer = nn.Linear(4, 4), nn.Linear(4, 4)

    def run() -> None:
        read = reader(torch.zeros(1, 4))
        for length in range(2, 9):
            writer(read.expand(length, 4))

    found = find_roots(run)
    assert [(s.module, len(s.args[0])) for s in found.samples] == [(reader, 1), (writer, 2), (writer, 8)]


def test_of_one_module_as_many_calls_count_as_the_program_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loop's hundreds of calls there are two samples: a benchmark of the module alone stands for all of them."""
    case = asked(net())
    monkeypatch.setattr(trial, "_seconds", lambda *args: 0.001)  # how long a call takes is not for a test to say

    def loop() -> None:
        for _ in range(40):
            case.run()

    scene = scene_of(case._replace(run=loop))
    assert scene.scene_of(case.model).roots == scene.roots
    alone = tuple(dataclasses.replace(sample, stands=1) for sample in scene.roots.samples)
    again, once = (
        trial.race(roots, CombinedChange(()), CombinedChange(()), lambda run: run, backward=False)
        for roots in (scene.scene_of(case.model).roots, dataclasses.replace(scene.roots, samples=alone))
    )
    assert again.before_s == pytest.approx(0.001 * sum(s.stands for s in scene.roots.samples))
    assert again.before_s > 5 * once.before_s


asked_for: list[Tensor] = []


class Counted(nn.Linear):
    """Notes each gradient that it is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        made.register_hook(asked_for.append)
        return made


@pytest.mark.parametrize("backward", [False, True])
def test_a_race_runs_backwards_what_the_program_does(backward: bool) -> None:
    model, x = Counted(8, 8), torch.randn(2, 8)

    def run() -> Tensor:
        made: Tensor = model(x)
        if backward:
            made.sum().backward()
        return made.detach()

    scene = scene_of(Case(model, run))
    asked_for.clear()
    trial.share_saved(scene, Change(lambda: lambda: None))
    runs = trial.RUNS if backward else 0  # of the program itself
    assert (len(asked_for) > runs) == backward


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.bag(torch.arange(6).view(2, 3))  # type: ignore[no-any-return]


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        for part in self.modules():
            part.register_forward_hook(lambda *a: None)


class Own(torch.optim.SGD):
    """Somebody's own."""


def laid_last() -> nn.Module:
    return net().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def views() -> nn.Module:
    """Convolutions whose weights share one memory."""
    made = net()
    whole = torch.cat([p.detach().reshape(-1) for p in made.parameters()])
    at = 0
    for p in made.parameters():
        p.data = whole[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return made


MISSES: dict[str, tuple[Optimization, Callable[[], Case]]] = {
    "no convolutions": (channels_last.OPTIMIZATION, lambda: asked(nn.Linear(8, 8).eval())),
    "channels last already": (channels_last.OPTIMIZATION, lambda: asked(laid_last())),
    "one memory": (channels_last.OPTIMIZATION, lambda: asked(views())),
    "training": (folded_norms.OPTIMIZATION, lambda: trained(net())),
    "statistics of the batch": (folded_norms.OPTIMIZATION, lambda: asked(net().train())),
    "watched": (folded_norms.OPTIMIZATION, lambda: asked(Hooked().eval())),
    "no norms": (folded_norms.OPTIMIZATION, lambda: asked(nn.Conv2d(3, 4, 3).eval())),
    "no autocast": (cast_weights.OPTIMIZATION, lambda: asked(net())),
    "autocast, training": (cast_weights.OPTIMIZATION, lambda: trained(net())),
    "projections, training": (merged_projections.OPTIMIZATION, lambda: trained(attending())),
    "projections, autocast": (merged_projections.OPTIMIZATION, lambda: asked(attending(), autocast=True)),
    "one product": (merged_projections.OPTIMIZATION, lambda: asked(net())),
    "bits, autocast": (fewer_bits.OPTIMIZATION, lambda: asked(net(), autocast=True)),
    "bits, nothing to narrow": (fewer_bits.OPTIMIZATION, lambda: asked(nn.Flatten())),
    "fused already": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.AdamW, fused=True)),
    "sparse gradients": (fused_optimizer.OPTIMIZATION, lambda: trained(Sparse())),
    "an optimizer of one's own": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), Own)),
    "foreach already": (fused_optimizer.OPTIMIZATION, lambda: trained(net(), torch.optim.RMSprop, foreach=True)),
    "clipped each time": (gradient_clipping.OPTIMIZATION, lambda: trained(net(), clip=1e-4)),
    "not clipped": (gradient_clipping.OPTIMIZATION, lambda: trained(net())),
    "clipping, no training": (gradient_clipping.OPTIMIZATION, lambda: asked(net())),
    "no zeros": (zeroed_gradients.OPTIMIZATION, lambda: trained(net())),
    "no optimizer": (fused_optimizer.OPTIMIZATION, lambda: asked(net())),
}


@pytest.mark.parametrize("name", MISSES)
def test_it_has_no_candidate(name: str) -> None:
    optimization, make = MISSES[name]
    assert candidates(optimization, scene_of(make())) == []


ANEW: dict[str, tuple[Optimization, Callable[[], Case]]] = {
    "channels_last": (channels_last.OPTIMIZATION, lambda: asked(net())),
    "folded norms": (folded_norms.OPTIMIZATION, lambda: asked(net())),
    "merged projections": (merged_projections.OPTIMIZATION, lambda: asked(attending())),
    "weights cast once": (cast_weights.OPTIMIZATION, lambda: asked(net(), autocast=True)),
    "fewer bits": (fewer_bits.OPTIMIZATION, lambda: asked(net())),
    "torch.compile": (torch_compile.OPTIMIZATION, lambda: asked(net())),
}


@pytest.mark.parametrize("name", ANEW)
def test_it_says_that_a_program_makes_its_modules_anew(name: str) -> None:
    """What applies but for that is told as not tried; what would not apply is not told of."""
    optimization, make = ANEW[name]
    with pytest.raises(Impossible, match=MODULES_MADE_ANEW):
        list(optimization.candidates(scene_of(Case(nn.Identity(), lambda: make().run()))))
    if optimization is not torch_compile.OPTIMIZATION:  # it applies to any
        assert list(optimization.candidates(scene_of(Case(nn.Identity(), lambda: asked(nn.Flatten()).run())))) == []


@pytest.mark.parametrize("name", HITS)
def test_a_plan_puts_it_in_place_where_nothing_else_is_known(name: str) -> None:
    optimization, make, _ = HITS[name]
    (case, ran), plain = counted(make()), make()
    scene = scene_of(case)
    found = candidates(optimization, scene)
    for _ in ran:
        plain.run()
    for candidate in found:
        plan = json.loads(json.dumps(as_plan([candidate], scene.roots, program="p", kind="", saves=None)))
        with apply(plan) as applied:
            got = case.run()
            assert not applied.waiting and len(applied.done) == 1
        torch.testing.assert_close(got, plain.run(), rtol=1e-4, atol=0.05 if LOOSE & set(name.split()) else 1e-5)
        assert not any("forward" in part.__dict__ for part in case.model.modules())


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.norm = nn.GELU(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(x))  # type: ignore[no-any-return]


def test_of_a_swap_that_gains_nothing_the_ops_that_do_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    case = asked(Two().eval())
    scene = scene_of(case)
    scene.budget = Budget(60.0, 1e-3)
    (whole,) = swap.OPTIMIZATION.candidates(scene)
    benchmarked: list[tuple[str, ...]] = []

    def share_saved(scene: Scene, change: Any, *more: Any) -> tuple[float, float]:
        with change:
            case.run()
        benchmarked.append(change.placed)
        return (0.1 if change.placed == ("gelu",) else -0.2), 0.0

    monkeypatch.setattr(swap, "share_saved", share_saved)
    monkeypatch.setattr(scene, "taken", [Change(lambda: lambda: None)])  # on top of something, it is benchmarked
    promise = swap.OPTIMIZATION.predict(scene, whole)
    assert promise.saves == -0.2 and set(benchmarked.pop()) == {"gelu", "layer_norm"} and promise.less is not None
    (some,) = promise.less()
    assert sorted(benchmarked) == [("gelu",), ("layer_norm",)] and some.option("ops") == ["gelu"]
    assert some.code == "kernelworks.swap(model, ops=['gelu'])" and some.group == whole.group
    promise = swap.OPTIMIZATION.predict(scene, some)
    assert promise.saves == 0.1 and promise.less is None
    with swap.OPTIMIZATION.apply(scene, some):
        assert "forward" in vars(case.model.act) and "forward" not in vars(case.model.norm)


@pytest.mark.parametrize(("seconds", "backward", "worth"), [(0.03, True, 1), (0.03, False, 0), (0.06, False, 1)])
def test_a_module_that_trains_is_worth_a_compiler_for_its_backward_too(
    seconds: float, backward: bool, worth: int
) -> None:
    model = nn.Linear(2, 2)
    steps = (torch.optim.SGD(model.parameters(), lr=0.1),) if backward else ()
    roots = Roots((model,), (), fresh=False, seconds={id(model): seconds})
    assert len(torch_compile.roots_worth_compiling(Scene(roots, optimizers=steps, walls=(1.0,)))) == worth


def test_a_compiler_that_fails_tells_of_the_error_behind_it() -> None:
    error = RuntimeError("backend='own' raised:\n\nValueError: no such kernel\n\nSet TORCHDYNAMO_VERBOSE=1")
    want = "compiled, it raises RuntimeError: backend='own' raised: ValueError: no such kernel"
    assert torch_compile.compile_error_text(error) == want
    assert torch_compile.compile_error_text(ValueError()) == "compiled, it raises ValueError"
