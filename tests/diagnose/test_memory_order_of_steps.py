"""torch's fused steps go through memory in order: one whose parameter, gradient and states lie in different orders is
stepped as torch's other steps do it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

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
