"""torch's fused steps go through memory in order: one whose parameter, gradient and states lie in different orders is
stepped as torch's other steps do it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

import kernelworks as kw
from kernelworks.diagnose.fix.plan_fields import VERSION
from kernelworks.diagnose.optimization import EVERYWHERE
from kernelworks.diagnose.optimizations.fused_optimizer import fuse


def _turned(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data.t().contiguous().t()


def _turned_gradient(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad = parameter.grad.t().contiguous().t()


LAID: dict[str, Callable[[nn.Parameter], None]] = {"the parameter": _turned, "its gradient": _turned_gradient}


@pytest.mark.parametrize("laid", LAID)
@pytest.mark.parametrize("kind", [AdamW, Adam, SGD, Adagrad])
@pytest.mark.parametrize("at", [0, 2])
def test_memory_in_another_order_is_stepped_right(kind: type[Optimizer], laid: str, at: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 6), torch.randn(5, 8)
    twin = copy.deepcopy(model)
    optimizers = [kind(m.parameters(), lr=0.01) for m in (model, twin)]  # type: ignore[call-arg]
    back = fuse(optimizers[0])
    for step in range(5):
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            if step == at:
                LAID[laid](each.weight)
            optimizer.step()
    back()
    torch.testing.assert_close(model.weight, twin.weight, rtol=0, atol=1e-6)


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


X = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def _stepped(model: nn.Module, optimizer: Optimizer, assign: Callable[[nn.Module], None] | None = None) -> None:
    optimizer.zero_grad(set_to_none=assign is not _into_a_bucket)
    if assign is None:
        model(X).square().sum().backward()
    else:
        assign(model)
    optimizer.step()


def _in_its_own_order(model: nn.Module) -> None:
    """Gradients as a program makes them itself: of samples, from a file, from another process."""
    for at, p in enumerate(model.parameters()):
        p.grad = torch.linspace(-1.0 - at, 2.0, p.numel()).reshape(p.shape)


def _into_a_bucket(model: nn.Module) -> None:
    """Gradients that are views of one memory."""
    parameters = list(model.parameters())
    if parameters[0].grad is None:
        bucket = torch.zeros(sum(p.numel() for p in parameters))
        for p, part in zip(parameters, bucket.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view(p.shape)
    model(X).square().sum().backward()


@pytest.mark.parametrize("kind", [AdamW, SGD])
@pytest.mark.parametrize("assign", [None, _in_its_own_order, _into_a_bucket])
def test_a_programs_own_fused_steps_under_another_memory_order(
    kind: type[Optimizer], assign: Callable[[nn.Module], None] | None
) -> None:
    """Its states may be older than the plan, or loaded meanwhile; it goes on after the undo."""
    torch.manual_seed(0)
    model = Picture()
    twin = copy.deepcopy(model)
    options: dict[str, object] = {"momentum": 0.9} if kind is SGD else {}
    pairs = [(m, kind(m.parameters(), lr=0.01, fused=True, **options)) for m in (model, twin)]  # type: ignore[call-arg]

    def both(times: int) -> None:
        for each, optimizer in pairs:
            for _ in range(times):
                _stepped(each, optimizer, assign)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)

    both(2)
    saved = copy.deepcopy(pairs[1][1].state_dict())
    with kw.apply(PLAN, model):
        assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
        both(2)
        for _, optimizer in pairs:
            optimizer.load_state_dict(copy.deepcopy(saved))
        both(2)
    both(2)


PLAN = {
    "kernelworks_plan": VERSION,
    "candidates": [
        {"optimization": "channels_last", "site": dataclasses.asdict(EVERYWHERE), "says": "", "code": "",
         "changes": "", "options": {}}
    ],
}  # fmt: skip
