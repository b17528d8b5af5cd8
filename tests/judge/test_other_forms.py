"""A bound counts the roundings of the reference's own formula; an honest one may have another form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernelworks.contract.bounds import bound_of
from kernelworks.judge.roles.oracle import of_other_forms


def test_a_formula_of_another_form_is_within_the_bound_and_one_of_other_numbers_is_not() -> None:
    """``(2 y + 3) / 6`` has a rounding more than ``y / 3 + 0.5``."""
    torch.manual_seed(0)
    x, y, flow = torch.rand(200_000), 0.02 * torch.rand(200_000), torch.randn(200_000)

    def run(x: Tensor, y: Tensor, flow: Tensor) -> Tensor:
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            return torch.autograd.grad(torch.relu(x) * nn.functional.hardswish(y), y, flow)[0]

    found = bound_of(run, [x, y, flow])
    exact, derived = found.reference[0], found.outputs[0]
    bound = of_other_forms(derived, exact, torch.float32)
    honest = flow * torch.relu(x) * ((2 * y + 3) / 6)
    assert bool(((honest.double() - exact).abs() > derived).any())  # beyond what the reference's own form may lose
    assert bool(((honest.double() - exact).abs() <= bound).all())
    assert bool(((honest.double() * (1 + 1e-6) - exact).abs() > bound).any())
    assert bool((of_other_forms(torch.zeros(3), torch.ones(3), torch.float32) == 0).all())  # what is exact
    nan, infinite = torch.tensor([torch.nan, torch.inf]), torch.full((2,), torch.inf)
    assert bool((of_other_forms(infinite, nan, torch.float32) == infinite).all())  # anything is right there
