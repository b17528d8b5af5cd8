"""A captured graph is of a module as it was: of one that holds, is or is watched by something else by now, the module
itself answers. On a recorder that plays again what it recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from taped import Taped
from torch import Tensor, nn

from kernelworks.diagnose.graphs.graphed_module import GraphedModule
from kernelworks.diagnose.graphs.held_state import HeldState
from kernelworks.diagnose.graphs.written_objects import marks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = 2.0
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu() * self.scale + self.shift)  # type: ignore[no-any-return]


class Other(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, x) * 3


@pytest.fixture(autouse=True)
def nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # torch for CPUs has none


EDITS: dict[str, Callable[[Net], object]] = {
    "in place": lambda m: m.first.weight.data.mul_(2),
    "transposed where it lies": lambda m: setattr(m.first.weight, "data", m.first.weight.data.t()),
    "other data": lambda m: setattr(m.first.weight, "data", m.first.weight.data * 2),
    "another parameter": lambda m: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach() * 2)),
    "a number": lambda m: setattr(m, "scale", 5.0),
    "another class": lambda m: setattr(m.first, "__class__", Other),
    "a parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.first),
    "a hook": lambda m: m.first.register_forward_hook(lambda module, given, made: made * 2),
    "a hook ahead": lambda m: m.last.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "another forward": lambda m: setattr(m.first, "forward", lambda x: Other.forward(m.first, x)),
    "frozen": lambda m: m.first.requires_grad_(False),
    "another module": lambda m: setattr(m, "last", nn.Linear(8, 8, bias=False)),
    "a buffer": lambda m: m.shift.data.fill_(9.0),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("training", [False, True])
def test_of_another_module_the_module_itself_answers(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    if name == "frozen":
        model.last.requires_grad_(False)  # and then it is trained after all
    graphed, x = GraphedModule(model, Taped), torch.randn(4, 8)
    with torch.set_grad_enabled(training):
        graphed(x)
        graphed(x)
        assert any(graphed.graphs.values())
        with torch.no_grad():
            EDITS[name](model)
        if name == "frozen":
            model.last.requires_grad_(True)
        got, want = graphed(x), model(x)
        torch.testing.assert_close(got, want)
        if training:
            parameters = [p for p in model.parameters() if p.requires_grad]
            ours, theirs = (torch.autograd.grad(y.square().sum(), parameters) for y in (got, want))
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b)


def test_numbers_that_the_host_reads_are_told_by_their_bytes() -> None:
    """Of tensors that no graph reads: written where nobody counts."""
    model = Net()
    held = HeldState(model, lambda tensor: False)
    assert not held.changed_name()
    model.shift.numpy()[3] = 4.0
    assert held.changed_name() == "shift"
    cache = nn.Module()
    cache.length = torch.tensor([3])
    before = marks(cache.length, lambda tensor: False)
    cache.length.data.fill_(4)
    assert marks(cache.length, lambda tensor: False) != before


def test_what_writes_into_its_input_past_the_counter_is_not_captured() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.data.add_(1)
            return x * 2

    model = Writes()
    graphed = GraphedModule(model, Taped)
    x, other = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(graphed(x), model(other))
            torch.testing.assert_close(x, other)
    assert graphed.reason == "it writes into its inputs"


def test_a_forward_on_an_instance_is_known_by_itself_not_by_its_address() -> None:
    model = Net()
    graphed = GraphedModule(model, Taped)
    x = torch.randn(4, 8)
    with torch.no_grad():
        for factor in range(1, 12):
            model.__dict__["forward"] = scaled(factor)
            torch.testing.assert_close(graphed(x), x * factor)
            del model.__dict__["forward"]


def scaled(factor: int) -> Callable[[Tensor], Any]:
    return lambda x: x * factor
