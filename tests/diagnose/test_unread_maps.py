"""Attention maps that nobody reads are not computed, for those who leave them unread, and for nobody else."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from planned import Kind, plan_of
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.diagnose.optimization import Impossible, Scene
from kernelworks.diagnose.optimizations import unread_maps
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.profile.program import Program

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.first(x, x, x)
        return self.second(x, key=x, value=x)[0]  # type: ignore[no-any-return]


class Named(Attending):
    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x, x, x)
        return self.second(found[0], found[0], found[0])[0]  # type: ignore[no-any-return]


class MayRead(Attending):
    """Another run may read what this one does not."""

    shows = False

    def forward(self, x: Tensor) -> Tensor:
        x, maps = self.first(x, x, x)
        return self.second(x, x, x)[0] + (maps.mean() if self.shows else 0.0)  # type: ignore[no-any-return]


class HandsOut(Attending):
    def show(self, x: Tensor) -> Any:
        return self.first(x, x, x)


class LooksRound(Attending):
    def forward(self, x: Tensor) -> Tensor:
        x, maps = self.first(x, x, x)
        return self.second(x, x, x)[0] + (locals()["maps"].mean() if self.training else 0.0)  # type: ignore[no-any-return]


def made(cls: type[nn.Module] = Attending) -> Any:
    torch.manual_seed(0)
    return cls().eval()


def plan(model: nn.Module, *parts: str) -> dict[str, Any]:
    return plan_of(Kind(type(model), "unread maps", {"parts": list(parts)}, "", 0.0, (object, "")), model)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the maps are wanted, at each call of torch's function."""
    found: list[bool] = []
    function = torch.nn.functional.multi_head_attention_forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(kwargs["need_weights"])
        return function(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "multi_head_attention_forward", noted)
    return found


@pytest.mark.parametrize(
    ("cls", "parts"),
    [(Attending, ["first", "second"]), (Named, ["first", "second"]), (MayRead, ["second"]), (HandsOut, ["second"]),
     (LooksRound, [])],
)  # fmt: skip
def test_maps_that_nobody_can_read_are_not_computed(cls: Any, parts: list[str], asked: list[bool]) -> None:
    model = made(cls)
    program = Program("p", lambda: model(X))
    with torch.no_grad():
        scene = Scene(find_roots(program.run), program)
    if not parts:
        with pytest.raises(Impossible, match="no method of LooksRound calls it and leaves the maps unread"):
            list(unread_maps.OPTIMIZATION.candidates(scene))
        return
    (candidate,) = unread_maps.OPTIMIZATION.candidates(scene)
    assert candidate.option("parts") == parts
    assert not list(unread_maps.OPTIMIZATION.takes.faults("module", dict(candidate.options)))
    model.train()
    expected = model(X)
    asked.clear()
    with unread_maps.OPTIMIZATION.apply(scene, candidate):
        torch.testing.assert_close(model(X), expected)
        assert asked == [name not in parts for name in ("first", "second")]
    assert all("forward" not in vars(each) for each in (model.first, model.second))


def test_whoever_else_calls_or_hooks_the_attention_gets_the_maps() -> None:
    model = made(HandsOut)
    seen: list[Any] = []
    with kw.apply(plan(model, "second"), model), torch.no_grad():
        assert model.second(X, X, X)[1] is not None
        model.second.register_forward_hook(lambda module, given, made: seen.append(made[1]))
        model(X)
        assert seen[0] is not None
        model.second._forward_hooks.clear()
        handle = nn.modules.module.register_module_forward_hook(lambda module, given, made: seen.append(made))
        model(X)
        handle.remove()
        assert all(each[1] is not None for each in seen[1:] if isinstance(each, tuple))


def test_a_part_whose_maps_may_be_read_is_left_with_the_reason() -> None:
    model = made(MayRead)
    with pytest.warns(RuntimeWarning, match="maps of first: no method of MayRead calls it and leaves"):
        applied = kw.apply(plan(model, "first"), model)
    assert applied.failed and not applied.done
    model.shows = True
    torch.testing.assert_close(model(X), copy.deepcopy(model)(X))


def test_copies_and_files_are_models_of_their_own(asked: list[bool]) -> None:
    """A copy that calls the original's attention would answer by the original's weights."""
    model, plain = made().train(), made().train()
    file = io.BytesIO()
    with kw.apply(plan(model, "first", "second"), model):
        twin = copy.deepcopy(model)
        torch.save(model, file)
        with torch.no_grad():
            model.first.in_proj_weight.mul_(3)
            model.second.out_proj.weight.add_(1)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (twin, loaded):
            torch.testing.assert_close(other(X), plain(X))
            assert "forward" not in vars(other.first)
        asked.clear()
        model(X)
        assert asked == [False, False]


def test_a_compiler_takes_it_whole() -> None:
    model, plain = made(), made()
    with kw.apply(plan(model, "first", "second"), model), torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(X), plain(X))
