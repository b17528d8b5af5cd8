"""What only one optimization does: whose norms it folds, what follows whoever changes the model, what the process is
told."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimization_stands import Case, OnGpu, X, asked, attending, candidates, looks, net, scene_of, trained
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from kernelworks.diagnose.optimization import Change, Impossible, Scene
from kernelworks.diagnose.optimizations import (
    allocator,
    folded_norms,
    fused_optimizer,
    host_waits,
    merged_projections,
    padded_sizes,
    program_trial,
    static_cache,
    threads,
    torch_compile,
    unused_gradients,
)
from kernelworks.diagnose.sites.modules import Roots
from kernelworks.measure.clock import page_faults
from kernelworks.profile.budget import Budget, BudgetExceeded
from kernelworks.profile.program import Program

FOLDABLE = [["conv", "norm"], ["deep.0", "deep.1"], ["wide.0", "wide.1"], ["head", "last"]]


@pytest.mark.parametrize("how", [fused_optimizer.FUSED, fused_optimizer.OURS])
def test_a_step_that_leads_elsewhere_is_none(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(trained(net(), torch.optim.AdamW))
    (candidate,) = (o for o in fused_optimizer.OPTIMIZATION.candidates(scene) if o.option("how") == how)
    assert fused_optimizer.OPTIMIZATION.predict(scene, candidate).saves is not None
    put = fused_optimizer.INSTALLERS[how]

    def wrong(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        optimizer.param_groups[0]["weight_decay"] = 0.5
        return put(optimizer)

    monkeypatch.setitem(fused_optimizer.INSTALLERS, how, wrong)
    with pytest.raises(Impossible, match="than rounding explains"):
        fused_optimizer.OPTIMIZATION.predict(scene, candidate)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An item for each step of AdamW that is fused."""
    found: list[None] = []
    step = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *args, **kwargs: found.append(None) or step(*args, **kwargs))
    return found


def test_optimizers_that_are_made_anew_are_fused_as_they_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net().train()
    made: list[torch.optim.Optimizer] = []

    def run() -> float:
        made.append(torch.optim.AdamW(model.parameters(), lr=1e-4))
        for _ in range(2):
            made[-1].zero_grad()
            loss = model(X).square().mean()
            loss.backward()
            made[-1].step()
        return loss.item()

    scene = scene_of(Case(model, run))
    assert not scene.roots.optimizers and scene.training
    (candidate,) = fused_optimizer.OPTIMIZATION.candidates(scene)
    assert fused_optimizer.OPTIMIZATION.predict(scene, candidate).saves is not None
    fused = counting(monkeypatch)
    with fused_optimizer.OPTIMIZATION.apply(scene, candidate):
        run()
        assert len(fused) == 2
        assert made[-1].param_groups[0]["fused"] is None  # it is while it steps
    run()
    assert made[-1].param_groups[0]["fused"] is None and len(fused) == 2


def test_a_cache_of_fixed_size_for_a_model_that_generates() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, num_key_value_heads=2, head_dim=16, **sizes)).eval()
    prompt = torch.randint(0, 64, (1, 4))

    def run() -> Tensor:
        return model.generate(prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False)  # type: ignore[no-any-return]

    scene = scene_of(Case(model, run))
    (candidate,) = static_cache.OPTIMIZATION.candidates(scene)
    assert static_cache.OPTIMIZATION.predict(scene, candidate).saves is not None
    before, plain = looks(Case(model, run)), run()
    with static_cache.OPTIMIZATION.apply(scene, candidate):
        assert torch.equal(run(), plain)
        assert candidates(static_cache.OPTIMIZATION, scene) == []
    assert looks(Case(model, run)) == before
    with torch.no_grad():
        assert (
            candidates(static_cache.OPTIMIZATION, scene_of(Case(model, lambda: model(prompt)))) == []
        )  # generates nothing

    def by_hand() -> Tensor:
        past, token = DynamicCache(), prompt
        for _ in range(6):
            token = model(token, past_key_values=past).logits[:, -1:].argmax(-1)
        return token

    with torch.no_grad():
        scene = scene_of(Case(model, by_hand))
    before = looks(Case(model, by_hand))
    (candidate,) = static_cache.OPTIMIZATION.candidates(scene)
    with pytest.raises(Impossible, match="does not call generate"):
        static_cache.OPTIMIZATION.predict(scene, candidate)
    assert looks(Case(model, by_hand)) == before


@pytest.mark.parametrize(("takes", "runs"), [(3.0, 3), (1.2, 1 + 2 * program_trial.TURNS)])
def test_what_has_lost_in_its_first_turn_is_run_no_more(
    takes: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[float] = [0.0]
    wall = 1.0

    def slower() -> Callable[[], None]:
        nonlocal wall
        wall = takes

        def back() -> None:
            nonlocal wall
            wall = 1.0

        return back

    monkeypatch.setattr("kernelworks.profile.program.time", SimpleNamespace(perf_counter=lambda: ended[-1]))
    scene = Scene(Roots((), (), False), Program("p", lambda: ended.append(ended[-1] + wall)), walls=(1.0,))
    found = program_trial.in_turns(scene, Change(slower))
    assert len(ended) - 1 == runs and found.saves == pytest.approx(1 - takes)


def test_blocks_are_compiled_as_far_as_all_of_them_fit_the_budget() -> None:
    blocks = [nn.Identity() for _ in range(8)]

    def compiled(x: float) -> float:
        time.sleep(0.01)
        return x

    plenty = torch_compile.compile_within_budget([(block, compiled) for block in blocks], Budget(60.0, 0.0))
    assert [call(1.0) for _, call in plenty] == [call(1.0) for _, call in plenty] == 8 * [1.0]
    short = torch_compile.compile_within_budget([(block, compiled) for block in blocks], Budget(0.06, 0.0))
    assert [call(1.0) for _, call in short[:2]] == 2 * [1.0], "the first of all says little"
    with pytest.raises(BudgetExceeded, match="compiling 8 blocks"):
        short[2][1](1.0)
    assert short[0][1](1.0) == 1.0, "what is compiled is called"


# ---------------------------------------------------------------- folded norms


def test_gradients_are_answers_where_the_program_asks_for_them() -> None:
    """One that leaves them on and runs no backward would have compilers make it for the verification alone."""
    model = net()
    left_on, learns = scene_of(Case(model, lambda: model(X))), scene_of(trained(net()))
    assert [sample.training for sample in left_on.roots.samples] == [True] and left_on.training
    assert [(sample.training, sample.recording) for sample in left_on.answer_samples] == [(False, True)]
    assert all(sample.training for sample in learns.answer_samples) and learns.answer_samples == learns.roots.samples


def test_norms_are_folded_where_nothing_else_reads_what_is_normed() -> None:
    (candidate,) = folded_norms.OPTIMIZATION.candidates(scene_of(asked(net())))
    assert [list(pair) for pair in candidate.option("pairs")] == FOLDABLE


def test_folded_norms_follow_whoever_changes_the_model() -> None:
    case = asked(net())
    scene = scene_of(case)
    change = folded_norms.OPTIMIZATION.apply(scene, next(iter(folded_norms.OPTIMIZATION.candidates(scene))))
    other = copy.deepcopy(case.model)

    def alike() -> bool:
        with torch.no_grad():
            return torch.allclose(case.run(), other(X), rtol=1e-4, atol=1e-5)

    with change:
        assert alike()
        for model in (case.model, other):
            with torch.no_grad():
                model.conv.weight.mul_(1.5)  # type: ignore[operator, union-attr]
        assert alike()
        state = {
            name: value + 0.5 if value.is_floating_point() else value for name, value in other.state_dict().items()
        }
        for model in (case.model, other):
            model.load_state_dict(state)
        assert alike()
        for model in (case.model, other):
            model.train()
        torch.testing.assert_close(case.run(), asked(other).run())  # statistics of the batch
        for model in (case.model, other):
            model.eval()
        assert alike()
        case.model(X).sum().backward()  # somebody trains it with fixed statistics
        other(X).sum().backward()
        ours, theirs = (list(m.named_parameters()) for m in (case.model, other))
        for (n, p), (_, q) in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4, msg=n)
        twin = copy.copy(case.model.conv)
        assert "forward" not in twin.__dict__  # a copy is the module as it was


# ---------------------------------------------------------------- merged projections


def test_projections_are_merged_where_they_have_one_input() -> None:
    case = asked(attending())
    scene = scene_of(case)
    (candidate,) = merged_projections.OPTIMIZATION.candidates(scene)
    assert candidate.option("groups") == [["query", "key", "value"], ["gate", "up"]]
    model: Any = case.model
    other = copy.deepcopy(model)
    planned = Scene(scene.roots)  # a plan knows no more
    for within in (scene, planned):
        with merged_projections.OPTIMIZATION.apply(within, candidate):
            assert model.key.weight.data_ptr() == model.query.weight.data_ptr() + model.query.weight.nbytes
            apart = torch.randn(2, 8)
            with torch.no_grad():
                for each in (model, other):
                    each.query.weight.mul_(1.5)
                    each.load_state_dict({n: t + 0.1 for n, t in each.state_dict().items()})
                torch.testing.assert_close(model(X), other(X))
                model.query(X.view(-1, 8))
                torch.testing.assert_close(model.key(apart), other.key(apart))  # called with another input
                same = X.view(-1, 8).clone()
                model.query(same)
                same.add_(1)  # the same tensor, of other values
                torch.testing.assert_close(model.key(same), other.key(same))
            model(X).sum().backward()
            other(X).sum().backward()
            torch.testing.assert_close(model.key.weight.grad, other.key.weight.grad)
            assert "forward" not in copy.copy(model.key).__dict__
            model.zero_grad(), other.zero_grad()
        assert model.key.weight.untyped_storage().nbytes() == model.key.weight.nbytes
        with torch.no_grad():
            torch.testing.assert_close(model(X), other(X))


# ---------------------------------------------------------------- the process


def test_malloc_is_left_alone_where_a_program_takes_few_fresh_pages() -> None:
    assert candidates(allocator.OPTIMIZATION, scene_of(asked(net()), faults=3)) == []


def test_malloc_settings_are_restored_after_a_benchmark() -> None:
    with page_faults.Memory():
        if not page_faults.set_thresholds(
            {page_faults.M_MMAP_THRESHOLD: 3 << 20, page_faults.M_TRIM_THRESHOLD: 6 << 20}
        ):
            return
        told = page_faults.thresholds()
        with page_faults.without_page_faults():
            assert page_faults.thresholds() == page_faults.RAISED_THRESHOLDS
        assert page_faults.thresholds() == told


def test_fewer_threads_are_a_candidate_for_small_ops_and_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        case = asked(nn.Linear(4, 4).eval())
        case = Case(case.model, lambda: case.model(torch.zeros(4)))
        scene = scene_of(case)
        found = candidates(threads.OPTIMIZATION, scene)
        assert [candidate.option("number") for candidate in found] == [1, 2]
        with threads.OPTIMIZATION.apply(scene, found[0]):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 4
        scene.forecaster.timeline.entries = lambda: [SimpleNamespace(seconds=1e-2)]  # type: ignore[union-attr, misc, assignment]
        assert candidates(threads.OPTIMIZATION, scene) == []
        torch.set_num_threads(1)
        assert candidates(threads.OPTIMIZATION, scene) == []
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------- advice


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (Case(net(), lambda: net()(X)), True), (asked(net()), False), (trained(net()), False),
        (Case(nn.Linear(8, 8), lambda: None), False),
    ],
)  # fmt: skip
def test_gradients_that_nobody_asks_for_are_told(case: Case, *, said: bool) -> None:
    found = candidates(unused_gradients.OPTIMIZATION, scene_of(case))
    assert bool(found) == said and all(candidate.advice and candidate.code for candidate in found)


def played(*, waits: int, model: nn.Module) -> Scene:
    """A run in which the host waits so often at one line, and once at another."""
    lines = ["train.py:12"] * waits + ["train.py:40"]
    calls = [SimpleNamespace(name="aten::item", place=SimpleNamespace(source=line, path="Net.head")) for line in lines]
    entries = [SimpleNamespace(waits=True, call=call) for call in calls]
    side: Any = SimpleNamespace(timeline=SimpleNamespace(calls=calls, entries=lambda: entries))
    return OnGpu(Roots((model,), (), fresh=False), forecaster=side)


def test_lines_that_wait_again_and_again_are_told() -> None:
    (candidate,) = host_waits.OPTIMIZATION.candidates(played(waits=5, model=net()))
    assert candidate.advice.startswith("train.py:12: the host waits for the GPU 5 times a run (item)")
    assert candidates(host_waits.OPTIMIZATION, played(waits=3, model=net())) == []
    assert candidates(host_waits.OPTIMIZATION, scene_of(asked(net()))) == []  # on a CPU nothing is waited for


@pytest.mark.parametrize(
    ("size", "dtype", "said"),
    [
        (50257, torch.bfloat16, True), (50304, torch.bfloat16, False), (50257, torch.float32, False),
        (11, torch.bfloat16, False),
    ],
)  # fmt: skip
def test_sizes_that_no_tile_fits_are_told(size: int, dtype: torch.dtype, *, said: bool) -> None:
    model = nn.Module()
    model.head = nn.Linear(2, size, dtype=dtype)
    found = candidates(padded_sizes.OPTIMIZATION, played(waits=0, model=model))
    assert [candidate.says for candidate in found] == (["50257 padded to 50304"] if said else [])
