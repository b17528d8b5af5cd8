"""A module that a program makes as it needs it, and that holds no tensors, is a function to a fix: a loss of a training
step keeps nothing from being tried on the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.sites.modules import SwappedModules, find_roots

X, ONES = torch.randn(16, 8), torch.ones(16, 8)


class Around(nn.Module):
    """Calls a module that is not registered with it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = [inner]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[0](x)


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss, lambda: nn.MSELoss(reduction="sum")])
def test_a_loss_made_anew_is_no_module_of_the_program(loss: type[nn.Module]) -> None:
    model, call = nn.Linear(8, 8), nn.Module.__call__

    def program() -> None:
        for _ in range(2):
            loss()(model(X), ONES).backward()

    roots = find_roots(program)
    assert roots.modules == (model,) and not roots.fresh
    assert [sample.module for sample in roots.samples] == [model] * 2 and roots.calls[id(model)] == 2
    assert nn.Module.__call__ is call
    with SwappedModules(roots, every=True) as swapped:
        program()
        assert swapped.swaps[0].replaced


def test_modules_made_anew_that_hold_tensors_are_told() -> None:
    weighed = nn.CrossEntropyLoss(weight=torch.ones(8))
    assert not find_roots(lambda: weighed(X, torch.zeros(16, dtype=torch.int64))).fresh
    for made in (
        lambda: nn.CrossEntropyLoss(weight=torch.ones(8))(X, torch.zeros(16, dtype=torch.int64)),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(8, 8))(X),
        lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(8, affine=False))(X),
    ):
        assert find_roots(made).fresh


def test_a_module_made_anew_may_call_a_lasting_one_that_is_not_its_part() -> None:
    """What the model is given is known of no first run then: nothing is tried, and the reason is told."""
    model = nn.Linear(8, 8)
    roots = find_roots(lambda: Around(model)(X))
    assert roots.modules == (model,) and roots.fresh


def test_a_loss_that_lasts_is_one_of_the_modules() -> None:
    model, loss = nn.Linear(8, 8), nn.BCEWithLogitsLoss()
    roots = find_roots(lambda: loss(model(X), ONES))
    assert roots.modules == (model, loss) and not roots.fresh
