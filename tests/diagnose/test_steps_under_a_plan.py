"""An optimizer that a plan has fused while it steps goes on as the program's own: with parameters that come late, and
after a step that raised."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from kernelworks.diagnose.optimizations.fused_optimizer import INSTALLERS

FUSED = [(SGD, {"momentum": 0.9}, "fused"), (AdamW, {}, "fused"), (Adam, {}, "fused"), (RMSprop, {}, "foreach")]


@pytest.mark.parametrize(("kind", "options", "how"), FUSED)
@pytest.mark.parametrize("late", ["thawed", "another parameter"])
def test_a_parameter_that_steps_later_than_others(kind: type[Optimizer], options: object, how: str, late: str) -> None:
    """torch's fused SGD raises if some of a group's parameters have momentum and others have none yet."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))]
    models.append(copy.deepcopy(models[0]))
    optimizers = [kind(m.parameters(), lr=0.05, **options) for m in models]  # type: ignore
    back = INSTALLERS[how](optimizers[0])
    for step in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            if late == "thawed":
                model[0].requires_grad_(step >= 2)
            elif step == 2:
                model[0].weight = optimizer.param_groups[0]["params"][0] = nn.Parameter(model[0].weight.detach() * 2)
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
    back()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "options", "how"), FUSED)
def test_a_state_saved_after_a_step_that_raised_is_the_programs(
    kind: type[Optimizer], options: object, how: str
) -> None:
    model = nn.Linear(4, 2)
    optimizer = kind(model.parameters(), lr=0.05, **options)  # type: ignore
    back = INSTALLERS[how](optimizer)
    before = optimizer.state_dict()["param_groups"]

    def raises() -> float:
        raise ValueError("inside the step")

    with pytest.raises(ValueError, match="inside the step"):
        optimizer.step(raises)
    assert optimizer.state_dict()["param_groups"] == before
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    back()
    assert optimizer.state_dict()["param_groups"] == before and not optimizer._optimizer_state_dict_pre_hooks
