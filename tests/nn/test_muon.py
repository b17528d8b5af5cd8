"""kw.Muon stands where torch.optim.Muon stood; what it makes orthogonal is right in float64."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.nn import optim
from kernelworks.nn.newton_schulz import orthogonalize_update
from kernelworks.ops.optimizer.optimizer_table import MUON_MOMENTUM_

SHAPES = ((8, 8), (16, 6), (5, 30), (1, 4), (4, 1))
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ASKED: tuple[dict[str, Any], ...] = (
    {}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw"}, {"weight_decay": 0.0, "ns_steps": 3},
    {"adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1e-3},
)  # fmt: skip


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many matrices each call of the op stepped, with its first kernel that may run taken."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    monkeypatch.setattr(optim, "_chosen", lambda op, args: True)
    kw.muon_momentum_([], [], [], momentum=0.5)  # a first call puts what serves the others in place
    seen, call = list[int](), MUON_MOMENTUM_.call
    monkeypatch.setattr(MUON_MOMENTUM_, "call", lambda *args: (seen.append(len(args[0])), call(*args)))
    return seen


def quarters(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Numbers whose averages by halves are exact, so that every kernel hands the same update to the products."""
    return torch.randint(-8, 9, shape, generator=generator) / 4


def train(kind: Any, asked: dict[str, Any], steps: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(5)
    params = [nn.Parameter(quarters(generator, shape).to(dtype)) for shape in SHAPES]
    made = kind([{"params": params[:3]}, {"params": params[3:], "lr": 0.5}], lr=0.02, momentum=0.5, **asked)
    for step in range(steps):
        for p in params:
            p.grad = quarters(generator, tuple(p.shape)).to(dtype)
        if not step:
            params[1].grad = None  # one matrix begins a step later
        made.step()
    return params, made


@pytest.mark.parametrize("asked", ASKED)
def test_it_steps_as_torchs(asked: dict[str, Any], stepped: list[int]) -> None:
    (want, torchs), (got, ours) = train(torch.optim.Muon, asked), train(kw.Muon, asked)
    assert stepped == [2, 2, 3, 2, 3, 2]
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    one, other = ours.state_dict(), torchs.state_dict()
    assert one["param_groups"] == other["param_groups"]
    torch.testing.assert_close(one["state"], other["state"], rtol=0, atol=0)
    assert inspect.signature(kw.Muon) == inspect.signature(torch.optim.Muon)


def test_where_no_kernel_of_ours_is_chosen_torchs_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "_chosen", lambda op, args: False)
    (want, _), (got, _) = train(torch.optim.Muon, {}), train(kw.Muon, {})
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("shape", [(6, 6), (3, 17), (17, 3), (1, 5), (5, 1)])
def test_what_is_made_orthogonal_is_the_polynomial_of_the_singular_values(shape: tuple[int, int]) -> None:
    """In float64, where 5 steps of slopes up to 3.4445 let no rounding grow past 1e-12; in bfloat16 as torch."""
    update = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, s, vt = torch.linalg.svd(update, full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / update.norm()
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    made = orthogonalize_update(update, COEFFICIENTS, 5, 1e-7, dtype=torch.float64)
    torch.testing.assert_close(made, (u * s) @ vt, rtol=0, atol=1e-12)
    param = nn.Parameter(torch.zeros(shape))
    param.grad = update.float()
    torch.optim.Muon([param], lr=1.0, momentum=0.0, weight_decay=0.0, adjust_lr_fn="original").step()
    ratio = max(1.0, shape[0] / shape[1]) ** 0.5
    narrow = orthogonalize_update(update.float(), COEFFICIENTS, 5, 1e-7)
    torch.testing.assert_close(narrow.float() * -ratio, param.detach(), rtol=1e-6, atol=0)


def test_a_step_of_bfloat16_rounds_once(stepped: list[int]) -> None:
    generator = torch.Generator().manual_seed(2)
    for shape in SHAPES:
        param = nn.Parameter((1.0 + torch.rand(shape, generator=generator)).bfloat16())
        param.grad = quarters(generator, shape).bfloat16()
        before, ratio = param.detach().double(), max(1.0, shape[0] / shape[1]) ** 0.5
        kw.Muon([param], lr=2.0**-7, momentum=0.5, nesterov=False, weight_decay=0.25).step()
        way = orthogonalize_update(param.grad / 2, COEFFICIENTS, 5, 1e-7).double()
        exact = (1 - 2.0**-9) * before - 2.0**-7 * ratio * way
        assert ((param.detach().double() - exact).abs() <= (2.0**-8 + 2.0**-20) * exact.abs() + 2.0**-20).all()
    assert len(stepped) == len(SHAPES)


def test_state_goes_both_ways(stepped: list[int]) -> None:
    want, torchs = train(torch.optim.Muon, {}, steps=2)
    got, ours = train(kw.Muon, {}, steps=2)
    for params, other in ((got, torch.optim.Muon), (want, kw.Muon)):
        made = other([{"params": params[:3]}, {"params": params[3:]}])
        made.load_state_dict(pickle.loads(pickle.dumps((ours if params is got else torchs).state_dict())))
        for p in params:
            p.grad = torch.ones_like(p)
        made.step()
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert stepped


def test_closures_and_what_torch_refuses(stepped: list[int]) -> None:
    param = nn.Parameter(torch.ones(3, 2))
    made = kw.Muon([param])
    assert made.step(lambda: ((param * 2).sum().backward(), 7.0)[1]) == 7.0 and stepped == [1]
    for wrong, error in (({"lr": -1.0}, ValueError), ({"adjust_lr_fn": "other"}, ValueError)):
        with pytest.raises(error):
            kw.Muon([param], **wrong)
    with pytest.raises(ValueError, match="2D"):
        kw.Muon([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match="100"):
        kw.Muon([param], ns_steps=100).step()
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        kw.Muon(sparse.parameters()).step()
    whole = nn.Parameter(torch.eye(2, dtype=torch.float64))
    whole.grad = torch.ones_like(whole)
    kw.Muon([whole]).step()  # torch's step
    assert stepped == [1] and not torch.equal(whole.detach(), torch.eye(2, dtype=torch.float64))
