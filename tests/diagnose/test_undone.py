"""What an undo gives back where somebody has wrapped, copied, saved or set the same thing meanwhile."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimization_stands import X, net
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import StepLR

from kernelworks.diagnose.optimization import PROCESS, Candidate, Scene
from kernelworks.diagnose.optimizations import (
    allocator,
    channels_last,
    compiler_settings,
    fused_optimizer,
    gradient_clipping,
    static_cache,
    threads,
)
from kernelworks.diagnose.optimizations.fused_optimizer import INSTALLERS
from kernelworks.diagnose.optimizations.settings import Setting, held_elsewhere
from kernelworks.diagnose.sites.modules import Roots

KINDS: dict[str, Any] = {"fused": torch.optim.AdamW, "kernelworks": torch.optim.AdamW, "foreach": torch.optim.NAdam}
SCENE = Scene(Roots((), (), fresh=False))


def made(how: str) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    return model, KINDS[how](model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, by: Any = None) -> None:
    optimizer.zero_grad()
    model(torch.arange(5.0)).square().sum().backward()
    (by or optimizer.step)()


def scheduled(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    scheduler = StepLR(optimizer, 1)

    def both() -> None:
        optimizer.step()
        scheduler.step()

    return both


def held(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    return optimizer.step


def scaled(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def both() -> None:
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()

    return both


@pytest.mark.parametrize("how", INSTALLERS)
@pytest.mark.parametrize("wrap", [scheduled, held, scaled])
def test_who_has_wrapped_a_step_meanwhile_steps_on_after_the_undo(how: str, wrap: Any) -> None:
    """A scheduler keeps the function of the step that it has found, and calls it for good."""
    ends = []
    for changed in (False, True):
        model, optimizer = made(how)
        back = INSTALLERS[how](optimizer) if changed else lambda: None
        step(model, optimizer)
        by = wrap(optimizer)
        for _ in range(2):
            step(model, optimizer, by)
        back()
        for _ in range(2):
            step(model, optimizer, by)
        assert type(optimizer) is KINDS[how]
        ends.append(model.weight.detach().clone())
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("how", INSTALLERS)
def test_what_is_saved_or_copied_meanwhile_is_of_the_programs_own_optimizer(how: str) -> None:
    model, optimizer = made(how)
    groups = [dict(group) for group in optimizer.param_groups]
    kind, hooks = type(optimizer), len(optimizer._optimizer_state_dict_post_hooks)
    back = INSTALLERS[how](optimizer)
    step(model, optimizer)
    saved = optimizer.state_dict()
    assert saved["param_groups"][0].get("fused") is None and saved["param_groups"][0].get("foreach") is None
    buffer = io.BytesIO()
    torch.save(optimizer, buffer)
    buffer.seek(0)
    others = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), torch.load(buffer, weights_only=False)
    back()
    assert [dict(group) for group in optimizer.param_groups] == groups
    assert len(optimizer._optimizer_state_dict_post_hooks) == hooks
    for other in others:
        assert type(other) is kind and not other.param_groups[0].get("fused")
        for p, q in zip(other.param_groups[0]["params"], model.parameters(), strict=True):
            p.grad = torch.ones_like(q)
        other.step()
    plain_model, plain = made(how)
    plain.load_state_dict(saved)
    assert not plain.param_groups[0].get("fused")
    step(plain_model, plain)


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_groups_that_are_loaded_or_added_meanwhile_are_as_they_were_made(how: str) -> None:
    model, optimizer = made(how)
    step(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    back = INSTALLERS[how](optimizer)
    optimizer.load_state_dict(saved)
    step(model, optimizer)
    more = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [more]})
    more.grad = torch.ones(2)
    step(model, optimizer)
    back()
    assert all(not group.get(how) for group in optimizer.param_groups)
    step(model, optimizer)


def test_a_step_that_raises_leaves_no_trace() -> None:
    model, optimizer = made("fused")
    before = dict(optimizer.param_groups[0])

    def closure() -> float:
        raise MemoryError

    back = INSTALLERS["fused"](optimizer)
    with pytest.raises(MemoryError):
        optimizer.step(closure)
    step(model, optimizer)
    assert dict(optimizer.param_groups[0]) == before
    with pytest.raises(MemoryError):
        optimizer.step(closure)
    back()
    assert dict(optimizer.param_groups[0]) == before


def test_an_optimizer_that_suits_no_more_is_torchs_own() -> None:
    """A learning rate that becomes a tensor, a parameter of whole numbers."""
    model, optimizer = made("fused")
    back = INSTALLERS["fused"](optimizer)
    asked = []
    optimizer.register_step_pre_hook(lambda one, *_: asked.append(one.param_groups[0]["fused"]))
    step(model, optimizer)
    optimizer.param_groups[0]["differentiable"] = True
    with torch.no_grad():
        step_of(model, optimizer)
    optimizer.param_groups[0]["differentiable"] = False
    step(model, optimizer)
    back()
    assert asked == [True, None, True]


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
        p.requires_grad_(False)
    optimizer.step()
    for p in model.parameters():
        p.requires_grad_(True)


# ---------------------------------------------------------------- clipping


def clipped(parameters: list[nn.Parameter]) -> list[int]:
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    before = [p.grad._version for p in parameters if p.grad is not None]
    clip_grad.clip_grad_norm_(parameters, 1.0)
    return [p.grad._version - was for p, was in zip(parameters, before, strict=True) if p.grad is not None]


def test_gradients_that_are_not_scaled_count_as_written() -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    wanted = clipped(parameters)
    back = gradient_clipping.only_where_clipped()
    try:
        assert clipped(parameters) == wanted == [1, 1]
        clip_grad.clip_grad_norm_((p for p in parameters), 1.0)
        clip_grad.clip_grad_norm_(parameters[0], 1.0)
    finally:
        back()


@pytest.mark.parametrize("how", gradient_clipping.INSTALLERS)
def test_who_has_wrapped_or_held_the_clipping_calls_torchs_own_after_the_undo(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, asked = gradient_clipping.SCALE, []
    torchs = getattr(clip_grad, name)
    monkeypatch.setattr(clip_grad, name, lambda *args: asked.append(args[3]) or torchs(*args))
    spied = getattr(clip_grad, name)
    back = gradient_clipping.INSTALLERS[how]()
    kept = getattr(clip_grad, name)
    setattr(clip_grad, name, lambda *args: kept(*args))
    back()
    for p in (parameters := [nn.Parameter(torch.ones(3))]):
        p.grad = torch.zeros(3)
    clip_grad.clip_grad_norm_(parameters, 1.0, foreach=False)
    assert asked == [False]
    setattr(clip_grad, name, spied)


# ---------------------------------------------------------------- settings


ORDERS = [[0, 1], [1, 0]]


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_to_leave_gives_back_what_the_first_has_found(order: list[int]) -> None:
    held = ["own"]
    setting: Setting[str] = Setting(lambda: held[0], lambda value: held.__setitem__(0, value))
    backs = [setting.want("a"), setting.want("b")]
    backs[order[0]]()
    assert held == [["b", "a"][order[0]]]
    backs[order[1]]()
    assert held == ["own"]
    back = setting.want("a")
    held[0] = "somebody's"
    back()
    assert held == ["somebody's"]


@pytest.mark.parametrize("order", ORDERS)
def test_threads_are_as_many_as_before_in_whatever_order_plans_leave(order: list[int]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        candidates = [Candidate("threads", PROCESS, "", options=(("number", n),)) for n in (2, 1)]
        changes = [threads.OPTIMIZATION.apply(SCENE, candidate) for candidate in candidates]
        for change in changes:
            change.__enter__()
        assert torch.get_num_threads() == 1
        for number in order:
            changes[number].__exit__(None, None, None)
        assert torch.get_num_threads() == 3
        with changes[0]:
            torch.set_num_threads(4)  # the program's own
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("order", ORDERS)
def test_graphs_are_limited_as_before_in_whatever_order_plans_leave(order: list[int]) -> None:
    import torch._dynamo.config as config

    before = config.recompile_limit
    backs = [compiler_settings.install_impls([]) for _ in range(2)]
    assert config.recompile_limit == compiler_settings.GRAPHS
    for number in order:
        backs[number]()
    assert config.recompile_limit == before
    back = compiler_settings.install_impls([])
    config.recompile_limit = 5
    back()
    assert config.recompile_limit == 5
    config.recompile_limit = before


@pytest.mark.parametrize("order", ORDERS)
def test_malloc_is_told_its_own_thresholds_by_the_last(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = ["own"]
    monkeypatch.setattr(allocator, "set_thresholds", lambda wanted: told.append(wanted))
    monkeypatch.setattr(allocator, "thresholds", lambda: told[-1])
    monkeypatch.setattr(allocator, "grow_heap", lambda size: None)
    monkeypatch.setattr(allocator, "release_memory", lambda held: None)
    changes = []
    for _ in range(2):
        changes.append(
            allocator.OPTIMIZATION.apply(Scene(Roots((), (), fresh=False)), Candidate("allocator", PROCESS, ""))
        )
        changes[-1].__enter__()
    changes[order[0]].__exit__(None, None, None)
    assert told[-1] == allocator.RAISED_THRESHOLDS
    changes[order[1]].__exit__(None, None, None)
    assert told[-1] == "own"


class Generating(nn.Linear):
    """Its ``generate`` says which cache it is asked for."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.generation_config = SimpleNamespace(cache_implementation=None)

    def generate(self, inputs: Any = None, generation_config: Any = None, **kwargs: Any) -> Any:
        asked = getattr(generation_config or self.generation_config, "cache_implementation", None)
        return kwargs.get("cache_implementation", asked)


def test_a_cache_that_somebody_has_asked_for_meanwhile_stays() -> None:
    model = Generating().eval()
    scene = Scene(Roots((model,), (), fresh=False))
    candidate = Candidate("static cache", scene.site(model), "")
    with static_cache.OPTIMIZATION.apply(scene, candidate):
        assert model.generate() == "static"
        assert model.generation_config.cache_implementation is None  # and so it is saved, and copied
        assert copy.deepcopy(model).generate() is None
        model.generation_config.cache_implementation = "quantized"
        assert model.generate() == "quantized"
    assert model.generation_config.cache_implementation == "quantized"
    assert "generate" not in model.__dict__


@pytest.mark.parametrize(
    "given",
    [
        {"past_key_values": ()}, {"return_dict_in_generate": True}, {"assistant_model": 1}, {"use_cache": False},
        {"prompt_lookup_num_tokens": 2}, {"generation_config": SimpleNamespace(return_dict_in_generate=True)},
    ],
)  # fmt: skip
def test_a_cache_that_outlives_the_call_is_torchs_own(given: dict[str, Any]) -> None:
    model = Generating().eval()
    scene = Scene(Roots((model,), (), fresh=False))
    with static_cache.OPTIMIZATION.apply(scene, Candidate("static cache", scene.site(model), "")):
        config = SimpleNamespace(cache_implementation=None)
        assert model.generate(None, config) == "static" and config.cache_implementation is None
        assert model.generate(**given) is None
        assert model.train().generate() is None


# ---------------------------------------------------------------- memory


def alias(t: Tensor) -> Any:
    return t.detach()


def in_numpy(t: Tensor) -> Any:
    return t.detach().numpy()


def storage(t: Tensor) -> Any:
    return t.untyped_storage()


def part(t: Tensor) -> Any:
    return t.detach()[:1]


@pytest.mark.parametrize("hold", [alias, in_numpy, storage, part])
def test_who_else_holds_memory_is_seen(hold: Callable[[Tensor], Any]) -> None:
    for tensor in (torch.ones(4, 3), nn.Parameter(torch.ones(4, 3)), torch.ones(6)[:3], torch.ones(4).share_memory_()):
        own = type(tensor) is nn.Parameter or tensor.dim() == 2
        assert held_elsewhere(tensor) is not own
        other = hold(tensor)
        assert held_elsewhere(tensor)
        del other
        assert held_elsewhere(tensor) is not own


def laid(model: nn.Module, optimizers: tuple[Any, ...] = ()) -> Callable[[], None]:
    return channels_last.relaid(channels_last._weights([model]), optimizers, {})


@pytest.mark.parametrize("hold", [alias, in_numpy])
def test_an_alias_of_a_weight_sees_what_is_written_to_it(hold: Callable[[Tensor], Any]) -> None:
    """One that was there before, and one that is made while weights are laid out."""
    model = net()
    weight = model.conv.weight
    first = hold(weight)
    back = laid(model)
    with torch.no_grad():
        weight.add_(1.0)
        assert not model.deep[0].weight.is_contiguous() or model.deep[0].weight.shape[1] == 1
    assert torch.equal(torch.as_tensor(first), weight.detach())
    second = hold(model.wide[0].weight)
    back()
    with torch.no_grad():
        model.wide[0].weight.add_(1.0)
        weight.add_(1.0)
    assert torch.equal(torch.as_tensor(first), weight.detach())
    assert torch.equal(torch.as_tensor(second), model.wide[0].weight.detach())


def test_gradients_in_one_buffer_stay_in_it() -> None:
    model = net().train()
    convolution = model.conv.weight
    flat = torch.zeros(convolution.numel() + 7)
    convolution.grad = flat[: convolution.numel()].view_as(convolution)
    kept = torch.zeros_like(convolution)
    optimizer = torch.optim.SGD([convolution], lr=0.1, momentum=0.9)
    optimizer.state[convolution]["momentum_buffer"] = kept
    flags = kept.detach()
    back = laid(model, (optimizer,))
    model(X).square().mean().backward()
    assert flat.abs().sum() > 0 and convolution.grad.data_ptr() == flat.data_ptr()
    assert kept.data_ptr() == flags.data_ptr() and not convolution.is_contiguous()
    back()
    assert convolution.grad.data_ptr() == flat.data_ptr() and convolution.is_contiguous()


def test_optimizations_of_optimizers_are_all_of_them() -> None:
    assert set(INSTALLERS) == set(KINDS) == set(fused_optimizer.SAYS)
