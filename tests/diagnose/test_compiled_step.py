"""A training step compiled as a whole: when it is a candidate, how it is verified, put in place, kept and taken out."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import kernelworks as kw
from kernelworks.diagnose.fix.duels import is_close_rival, is_raced
from kernelworks.diagnose.fix.patch import as_patch
from kernelworks.diagnose.fix.plan import as_plan
from kernelworks.diagnose.optimization import Candidate, Rejected, Scene
from kernelworks.diagnose.optimizations import compiled_step, compiler_settings, torch_compile
from kernelworks.diagnose.optimizations.compiled_step import STEP
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.profile.budget import Budget
from kernelworks.profile.program import Program, from_function, from_target

PROGRAM = """\
import functools

import torch
from torch import nn


@functools.cache
def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), torch.randn(4, 8)


def step():
    model, optimizer, x = made()
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def steps():
    return [step() for _ in range(9)]


def judge():
    model, _, x = made()
    with torch.no_grad():
        return model(x)
"""
Compiled = list[Callable[..., Any]]


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[ModuleType]:
    """The program's file, imported by its name."""
    path = tmp_path / "their_program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    from_target(f"{path}:step")
    yield sys.modules["their_program"]
    del sys.modules["their_program"]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """What was handed to a compiler that leaves it as it is, and how often that was called."""
    called: Compiled = []

    def call(fn: Callable[..., Any], *args: Any) -> Any:
        called.append(fn)
        return fn(*args)

    def compile(fn: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        return functools.partial(call, fn)  # no function of the program's that has closed over it

    monkeypatch.setattr(torch, "compile", compile)
    return called


def scene_of(theirs: ModuleType, name: str = "step") -> Scene:
    program = from_function(getattr(theirs, name))
    program.run()
    roots = find_roots(program.run)
    side: Any = SimpleNamespace(timeline=None, device=SimpleNamespace(with_sync=lambda run: run))
    return Scene(roots, program, roots.optimizers, side, (1e-2,), Budget(100.0, 1e-2))


def steps_of(scene: Scene) -> list[Candidate]:
    return [one for one in torch_compile.OPTIMIZATION.candidates(scene) if one.option(STEP)]


def test_a_training_step_is_a_candidate_in_the_place_of_its_modules(theirs: ModuleType) -> None:
    scene = scene_of(theirs)
    every = list(torch_compile.OPTIMIZATION.candidates(scene))
    (one,) = steps_of(scene)
    assert one.code == "step = torch.compile(step)" and one.option("mode") is None
    whole = next(other for other in every if other.says == "compiled whole")
    assert one.group == whole.group and {"ops", "optimizer"} == one.touches
    pair: Any = [SimpleNamespace(candidate=each, saves=0.5) for each in (one, whole)]
    assert is_close_rival(*pair) and not is_raced(*pair)  # a race of modules does not see what a step gains
    its, theirs_s = (torch_compile.OPTIMIZATION.expected_s(scene, each) for each in (one, whole))
    assert its > theirs_s > 0


@pytest.mark.parametrize("name", ["steps", "judge"])
def test_a_loop_of_steps_and_a_program_that_does_not_train_have_none(name: str, theirs: ModuleType) -> None:
    assert not steps_of(scene_of(theirs, name))


def test_what_the_program_compiled_itself_has_none(theirs: ModuleType, compiled: Compiled) -> None:
    theirs.step._torchdynamo_orig_callable = theirs.step  # as torch.compile marks it
    assert not steps_of(scene_of(theirs))


def test_it_is_run_verified_put_in_place_and_taken_out(
    theirs: ModuleType, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, own = scene_of(theirs), theirs.step
    (one,) = steps_of(scene)
    monkeypatch.setattr(
        Program, "median", lambda self, runs, *, alone: self.run() is None or (0.01 if alone else 0.004)
    )
    promise = torch_compile.OPTIMIZATION.predict(scene, one)
    assert promise.saves == pytest.approx(0.6) and "its steps compared" in promise.how and compiled
    assert theirs.step is own
    change = torch_compile.OPTIMIZATION.apply(scene, one)
    assert change.verified_against == "the program's own steps"
    compiled.clear()
    with change:
        assert theirs.step is not own
        theirs.step()
        assert scene.program is not None
        scene.program.run()
        assert compiled == [own, own]
    assert theirs.step is own and torch_compile.OPTIMIZATION.apply(scene, one) is not None


def test_a_step_that_learns_something_else_is_rejected(theirs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(theirs)
    (one,) = steps_of(scene)

    def call(fn: Callable[..., Any]) -> Any:
        answer = fn()
        with torch.no_grad():
            next(theirs.made()[0].parameters()).mul_(1.01)
        return answer

    def compile(fn: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        return functools.partial(call, fn)

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(
        Program, "median", lambda self, runs, *, alone: self.run() is None or (0.01 if alone else 0.004)
    )
    with pytest.raises(Rejected, match="training steps differ with it"):
        torch_compile.OPTIMIZATION.predict(scene, one)
    monkeypatch.setattr(compiled_step, "same_steps", lambda *args: None)
    with pytest.raises(Rejected, match="cannot be compared"):
        torch_compile.OPTIMIZATION.predict(scene, one)


def test_its_plan_is_applied_without_a_search_and_its_patch_decorates_the_step(
    theirs: ModuleType, compiled: Compiled
) -> None:
    scene, own = scene_of(theirs), theirs.step
    (one,) = steps_of(scene)
    plan = as_plan([one], scene.roots, program="theirs", kind="here", saves=0.5)
    with kw.apply(plan) as placed:
        assert not placed.failed and not placed.waiting, placed
        theirs.step()
        assert compiled == [own]
    assert theirs.step is own
    patch = as_patch([one], scene, Path(theirs.__file__ or ""), own)
    assert "+@torch.compile\n def step():" in patch


def test_dynamo_takes_a_step_whose_model_comes_from_a_cache(theirs: ModuleType) -> None:
    """Traced by dynamo itself, without a code generator, it learns what eager torch learns: the cached model's."""
    scene = scene_of(theirs)
    (one,) = steps_of(scene)
    eager = dataclasses.replace(one, options=(*one.options, ("backend", "eager")))
    model = theirs.made()[0]
    before = [p.detach().clone() for p in model.parameters()]
    with torch_compile.OPTIMIZATION.apply(scene, eager):
        theirs.step()
    assert all(not torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
    assert isinstance(model, nn.Module) and theirs.made()[0] is model


def test_a_step_on_a_gpu_asks_no_instruction_sets_of_the_cpu(
    theirs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """inductor tries each in a process of its own: half a minute on some machines, in each process of a fix."""
    asked: list[str] = []
    monkeypatch.setattr(compiler_settings, "vector_bits", lambda: asked.append("asked"))
    scene = scene_of(theirs)
    (one,) = steps_of(scene)
    for on_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda on_gpu=on_gpu: on_gpu)
        step = scene.at(one.site)
        compiler_settings.install_impls([(step, lambda: None)])()
        assert asked == ["asked"]
