"""A training program's steps: the same with a right change, others with a wrong one, and then back at the start."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelworks.diagnose.fix import output_check
from kernelworks.diagnose.optimization import Candidate, Change, CombinedChange, Scene, Site
from kernelworks.diagnose.optimizations.trial import draws
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.verify import training_steps
from kernelworks.diagnose.verify.training_steps import same_steps
from kernelworks.profile.program import Program


def trained(
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, p: float = 0.0, **more: Any
) -> tuple[nn.Module, torch.optim.Optimizer, Scene]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Dropout(p), nn.Linear(24, 4))
    x, y = torch.randn(32, 12), torch.randint(0, 4, (32,))
    optimizer = make(net.parameters(), lr=1e-2, **more)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    roots = find_roots(step)
    return net, optimizer, Scene(roots, Program("p", step), optimizers=roots.optimizers)


@contextlib.contextmanager
def fused(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    for group in optimizer.param_groups:
        group["fused"] = True
    yield
    for group in optimizer.param_groups:
        group["fused"] = False


@contextlib.contextmanager
def with_group(optimizer: torch.optim.Optimizer, name: str, value: float) -> Iterator[None]:
    (group,) = optimizer.param_groups
    before, group[name] = group[name], value
    yield
    group[name] = before


@contextlib.contextmanager
def scaled_gradients(net: nn.Module) -> Iterator[None]:
    hooks = [p.register_hook(lambda g: g * 1.01) for p in net.parameters()]
    yield
    for hook in hooks:
        hook.remove()


def standing(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = [v for p in net.parameters() for v in optimizer.state[p].values() if isinstance(v, Tensor)]
    return [t.clone() for t in (*net.state_dict().values(), *state, *(p.grad for p in net.parameters()))]  # type: ignore[union-attr]


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_fused_optimizer_learns_the_same_and_everything_is_as_it_was(p: float) -> None:
    net, optimizer, scene = trained(fused=False, p=p)
    before = standing(net, optimizer)
    found = same_steps(scene, fused(optimizer))
    assert found is not None and found.agrees and draws(scene) == bool(p)
    torch.testing.assert_close(standing(net, optimizer), before, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_steps_with_checkpoints_are_compared(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=False)
    x, y = torch.randn(32, 12), torch.randint(0, 4, (32,))

    def step() -> Tensor:
        optimizer.zero_grad()
        inside = checkpoint(lambda h: net[1](h.float()), net[0](x), use_reentrant=reentrant)
        loss = F.cross_entropy(net[2](inside), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    roots = find_roots(step)
    scene = Scene(roots, Program("p", step), optimizers=roots.optimizers)
    right, wrong = same_steps(scene, fused(optimizer)), same_steps(scene, with_group(optimizer, "lr", 1.02e-2))
    assert right is not None and right.agrees
    assert wrong is not None and not wrong.agrees


@pytest.mark.parametrize(
    ("wrong", "worst"),
    [
        (lambda net, optimizer: with_group(optimizer, "lr", 1.02e-2), ""),
        (lambda net, optimizer: with_group(optimizer, "weight_decay", 0.2), ""),
        (lambda net, optimizer: with_group(optimizer, "betas", (0.95, 0.999)), ""),
        (lambda net, optimizer: scaled_gradients(net), "gradient of"),
    ],
    ids=["rate", "decay", "momentum", "gradients"],
)
def test_one_that_learns_otherwise_is_seen(wrong: Callable[..., Any], worst: str) -> None:
    net, optimizer, scene = trained()
    found = same_steps(scene, wrong(net, optimizer))
    assert found is not None and not found.agrees and worst in found.note and "after 3 steps" in found.note


@pytest.mark.parametrize(
    ("name", "roundings", "differs"), [("weight", 4, False), ("weight", 8, True), ("what step 1 returns", 2, True)]
)
def test_a_parameter_is_rounded_where_it_lies_in_every_step(name: str, roundings: int, differs: bool) -> None:
    """A fused step rounds a parameter elsewhere than several kernels do."""
    value, moved = torch.ones(1000), {"weight": 1.0} if name == "weight" else {}
    reference = training_steps._Learned({name: value}, moved)
    other = training_steps._Learned({name: value + roundings * 2.0**-24}, moved)
    assert (training_steps._judged(reference, other, [reference]) is not None) == differs


def test_a_program_that_does_not_repeat_itself_is_not_compared() -> None:
    net, optimizer, scene = trained()
    assert scene.program is not None
    run, rates = scene.program.run, iter(range(1, 1000))

    def scheduled() -> Any:
        optimizer.param_groups[0]["lr"] = 1e-3 * next(rates)
        return run()

    scene = dataclasses.replace(scene, program=Program("p", scheduled), _kept={})
    assert same_steps(scene, scaled_gradients(net)) is None


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_sums_in_another_order_each_time_are_compared(make: Callable[..., torch.optim.Optimizer]) -> None:
    """As a GPU's atomics add them. The bias before a batch norm has rounding errors for its gradient, and Adam follows
    their sign."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Linear(24, 4))
    x, y, turns = torch.randn(256, 12), torch.randint(0, 4, (256,)), itertools.count()
    optimizer = make(net.parameters(), lr=1e-2)

    def step() -> Tensor:
        order = torch.arange(256).roll(7 * next(turns))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[order]), y[order])
        loss.backward()
        optimizer.step()
        return loss.detach()

    roots = find_roots(step)
    scene = Scene(roots, Program("p", step), optimizers=roots.optimizers)
    for change, agrees in (
        (contextlib.nullcontext(), True), (scaled_gradients(net), False),
        (with_group(optimizer, "lr", 1.02e-2), False),
    ):  # fmt: skip
        found = same_steps(scene, change)
        assert found is not None and found.agrees is agrees, found


@pytest.mark.parametrize(("on_gpu", "ordered"), [(True, True), (True, False), (False, True)])
def test_a_gpu_whose_sums_have_no_order_is_asked_for_one(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, ordered: bool
) -> None:
    """Elements of a gradient that are next to nothing have one sign or the other, and Adam moves them by its rate: the
    program does not seem to repeat itself, unless it is asked with torch's deterministic kernels."""
    torch.manual_seed(0)
    net, x = nn.Linear(12, 4), torch.randn(32, 12)
    optimizer, turns = torch.optim.Adam(net.parameters(), lr=1e-2), itertools.count()

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        if not (ordered and torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic):
            net.weight.grad[0, :4] = 1e-9 * (-1.0) ** next(turns)  # type: ignore[index]
        optimizer.step()
        return loss.detach()

    roots = find_roots(step)
    scene = Scene(roots, Program("p", step), optimizers=roots.optimizers)
    monkeypatch.setattr(Scene, "on_gpu", on_gpu)
    # as torch.testing._internal leaves it
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
    found = same_steps(scene, scaled_gradients(net))
    assert (found is not None and not found.agrees) if on_gpu and ordered else found is None
    assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.deterministic


def test_what_the_program_has_learned_since_is_no_matter() -> None:
    """A search runs the program many times between two comparisons: both are of the same steps."""
    net, optimizer, scene = trained(fused=False)
    assert scene.program is not None
    found = same_steps(scene, fused(optimizer))
    assert found is not None and found.agrees
    for _ in range(5):
        scene.program.run()
    before = standing(net, optimizer)
    for change, agrees in ((fused(optimizer), True), (with_group(optimizer, "lr", 1.02e-2), False)):
        found = same_steps(scene, change)
        assert found is not None and found.agrees is agrees
        torch.testing.assert_close(standing(net, optimizer), before, rtol=0, atol=0)


def test_a_schedule_of_learning_rates_is_put_back_with_its_optimizer() -> None:
    net, optimizer, scene = trained()
    assert scene.program is not None
    schedule, run = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), scene.program.run

    def scheduled() -> Any:
        loss = run()
        schedule.step()
        return loss

    scene = dataclasses.replace(scene, program=Program("p", scheduled), _kept={})
    rates = schedule.last_epoch, schedule.get_last_lr(), optimizer.param_groups[0]["lr"]
    found = same_steps(scene, contextlib.nullcontext())
    assert found is not None and found.agrees
    found = same_steps(scene, scaled_gradients(net))
    assert found is not None and not found.agrees
    assert (schedule.last_epoch, schedule.get_last_lr(), optimizer.param_groups[0]["lr"]) == rates


def test_on_top_of_what_was_allowed_to_change_numbers_the_steps_are_held_against_those_with_it() -> None:
    net, optimizer, scene = trained()
    rate = CombinedChange((Change(lambda: _entered(with_group(optimizer, "lr", 2e-2))),))
    assert (same_steps(scene, rate) or pytest.fail()).agrees is False
    assert (same_steps(scene, rate, rate) or pytest.fail()).agrees is True
    both = CombinedChange((*rate.changes, Change(lambda: _entered(scaled_gradients(net)))))
    assert (same_steps(scene, both, rate) or pytest.fail()).agrees is False


class Overwritten(Tensor):
    """As a CUDA graph leaves its results when it runs again: without memory, and no operator takes it."""

    @staticmethod
    def like(tensor: Tensor) -> Overwritten:
        made: Overwritten = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Overwritten, tensor.shape, dtype=tensor.dtype, device=tensor.device
        )
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run")


def test_gradients_that_a_cuda_graph_has_overwritten_are_no_obstacle() -> None:
    net, optimizer, scene = trained()
    for p in net.parameters():
        p.grad = Overwritten.like(p)
        with pytest.raises(RuntimeError, match="overwritten"):
            p.grad.clone()
    found = same_steps(scene, fused(optimizer))
    assert found is not None and found.agrees
    assert all(p.grad is None for p in net.parameters())


def test_gradients_overwritten_during_the_steps_come_back_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    net, _, scene = trained()
    assert scene.program is not None
    scene.program.run()
    first = [p.grad for p in net.parameters() if p.grad is not None]
    values = [gradient.clone() for gradient in first]
    start = training_steps._Start(scene)
    for gradient in first:
        gradient.fill_(7.0)
    lost = {id(gradient) for gradient in first}
    monkeypatch.setattr(training_steps, "is_overwritten", lambda gradient: id(gradient) in lost)
    start.restore()
    for p, gradient, value in zip(net.parameters(), first, values, strict=True):
        assert p.grad is not None and p.grad is not gradient and (gradient == 7.0).all(), (
            "it is neither read nor written"
        )
        assert torch.equal(p.grad, value)


def _entered(context: contextlib.AbstractContextManager[None]) -> Callable[[], None]:
    context.__enter__()
    return lambda: context.__exit__(None, None, None) and None


def test_steps_that_the_memory_does_not_hold_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    net, _, scene = trained()
    size = sum(p.nbytes for p in net.parameters())
    monkeypatch.setattr(training_steps, "available_bytes", lambda device: 20 * size)
    assert same_steps(scene, scaled_gradients(net)) is None


def test_a_program_without_an_optimizer_is_left_to_its_modules() -> None:
    _, _, scene = trained()
    assert same_steps(dataclasses.replace(scene, optimizers=()), contextlib.nullcontext()) is None


def test_if_random_numbers_are_others_what_draws_the_originals_is_verified() -> None:
    plain, other = Change(lambda: lambda: None), Change(lambda: lambda: None)
    assert CombinedChange((plain,)).random is None
    other.random = Change(lambda: lambda: None)
    together = CombinedChange((plain, other)).random
    assert together is not None and together.changes == (plain, other.random)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(7, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.scale, n=12)


@contextlib.contextmanager
def turned_gradients(net: Spectrum) -> Iterator[None]:
    hook = net.scale.register_hook(lambda g: torch.complex(g.real, 1.01 * g.imag))
    yield
    hook.remove()


@pytest.mark.filterwarnings("error:Casting complex values")
def test_of_complex_parameters_both_parts_are_compared() -> None:
    torch.manual_seed(0)
    net, x, y = Spectrum(), torch.randn(32, 12), torch.randn(32, 12)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()

    roots = find_roots(step)
    scene = Scene(roots, Program("p", step), optimizers=roots.optimizers)
    found = same_steps(scene, contextlib.nullcontext())
    assert found is not None and found.agrees
    found = same_steps(scene, turned_gradients(net))
    assert found is not None and not found.agrees


@pytest.mark.parametrize("same", [True, False])
def test_steps_are_compared_only_of_what_may_change_numbers(same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory comes from changes none: a small budget is not spent on seeing it."""
    seen: list[Any] = []
    monkeypatch.setattr(output_check, "same_steps", lambda *args: seen.append(args))
    change = Change(lambda: lambda: None, "itself", same_numbers=same)
    candidate = Candidate("allocator", Site("process"), "memory is kept")
    one: Any = SimpleNamespace(why="", change=change, candidate=candidate, agreement=None)
    scene: Any = SimpleNamespace(budget=SimpleNamespace(seconds=100.0), wall=0.01, say=lambda line: None)
    output_check.check_outputs(scene, one, CombinedChange((change,)), [], 1.0)
    assert one.agreement.agrees and bool(seen) is not same
