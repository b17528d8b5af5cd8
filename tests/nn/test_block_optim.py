"""AdamW8bit: its steps are the op's definition, its state dict comes back, small parameters are torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kernelworks as kw
from kernelworks.dispatch.op import OPS

OP = OPS["adamw8bit_"]


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((70, 90), (5000,), (3, 5))]


def loss_of(params: list[nn.Parameter]) -> torch.Tensor:
    return sum(((p.float() - 0.3) ** 2).sum() for p in params)  # type: ignore[return-value]


def run(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(params).backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_is_the_definition(dtype: torch.dtype) -> None:
    params = parameters(dtype)
    optimizer = kw.AdamW8bit(params, lr=0.01)
    run(optimizer, params, 2)
    p, state = params[0], {k: v.clone() for k, v in optimizer.state[params[0]].items()}
    assert [state[name].dtype for name in ("exp_avg", "rms")] == [torch.uint8] * 2
    assert state["exp_avg_scale"].dtype is torch.float32
    before = p.detach().clone().reshape(-1)
    run(optimizer, params, 1)
    states = {n: state[n] for n in ("exp_avg", "exp_avg_scale", "rms", "rms_scale")}
    want = OP.contract.reference(
        param=before, grad=p.grad.reshape(-1), **states,
        step=3, lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, maximize=False,
    )  # fmt: skip
    torch.testing.assert_close(p.detach().reshape(-1), want[0].to(dtype))
    assert optimizer.state[params[2]]["exp_avg"].dtype is dtype


def test_it_goes_where_adamw_goes_and_small_parameters_go_there_exactly() -> None:
    ends = []
    for kind in (kw.AdamW8bit, torch.optim.AdamW):
        params = parameters()
        run(kind(params, lr=0.05), params, 60)
        ends.append(params)
    torch.testing.assert_close(ends[0][2], ends[1][2])
    for ours, torchs, start in zip(*ends, parameters(), strict=True):
        assert (ours - torchs).norm() < 0.1 * (torchs - start).norm()


def test_a_state_dict_comes_back_with_bytes_and_scales() -> None:
    params = parameters(torch.bfloat16)
    optimizer = kw.AdamW8bit(params, lr=0.01)
    run(optimizer, params, 3)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    again = kw.AdamW8bit(others, lr=0.5)
    again.load_state_dict(optimizer.state_dict())
    for both in ((optimizer, params), (again, others)):
        run(*both, 2)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def test_a_parameter_whose_elements_lie_apart_and_a_closure() -> None:
    whole = torch.randn(64, 100)
    ends = []
    for p in (nn.Parameter(whole.t()), nn.Parameter(whole.t().contiguous())):
        optimizer = kw.AdamW8bit([p], lr=0.1, maximize=True)
        assert optimizer.step(lambda p=p: (loss_of([p]).backward(), 7.0)[1]) == 7.0
        ends.append(p)
    assert torch.equal(*ends)


def test_a_parameter_and_a_gradient_with_steps_between_their_elements() -> None:
    apart, whole = (nn.Parameter(torch.linspace(-1, 1, 10_000)[::2]) for _ in range(2))
    whole = nn.Parameter(whole.detach().contiguous())
    for p in (apart, whole):
        p.grad = torch.linspace(-3, 2, 10_000)[::2]
        kw.AdamW8bit([p], lr=0.1).step()
    assert torch.equal(apart, whole)


def test_another_step_or_rate_is_no_other_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept: of a number that none of them depends on each value would be one more, every step."""
    made: list[Any] = []
    original = OP.make_plan
    monkeypatch.setattr(OP, "make_plan", lambda *args: made.append(args) or original(*args))
    OP.forget()
    p, g = torch.randn(700), torch.randn(700)
    codes, scales = ([torch.zeros(size, dtype=d) for _ in range(2)] for size, d in ((700, torch.uint8), (3, None)))
    for step in range(1, 6):
        kw.adamw8bit_(
            p, g, codes[0], scales[0], codes[1], scales[1], step=step, lr=0.01 / step, beta1=0.9, beta2=0.99, eps=1e-8,
            weight_decay=0.01 * step, kernel="torch",
        )  # fmt: skip
    assert len(made) == 1


@pytest.mark.parametrize(("asked", "named"), [({"lr": -1.0}, "lr"), ({"betas": (0.9, 1.0)}, "beta2")])
def test_what_it_refuses_is_named(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kw.AdamW8bit(parameters(), **asked)
    sparse = nn.Parameter(torch.ones(3))
    sparse.grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        kw.AdamW8bit([sparse]).step()
