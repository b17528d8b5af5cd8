"""User-written root mean square normalisations are found by identity testing; look-alikes are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelworks.nn.swap import swap


class Base(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(48) + 0.5)
        self.eps = eps


class InTwoMethods(Base):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


class WithSqrt(Base):
    def forward(self, x):
        return self.weight * (x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.eps))


class OnePlusWeight(Base):
    def forward(self, x):
        return (1 + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class EpsOutside(Base):
    def forward(self, x):
        return self.weight * (x / (torch.sqrt((x * x).mean(dim=-1, keepdim=True)) + self.eps))


class WrongDimension(Base):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps))


class Branching(Base):
    def forward(self, x):
        if x.dim() == 3:
            return x
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Centred(Base):
    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@pytest.mark.parametrize("cls", [InTwoMethods, WithSqrt])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_found(cls, dtype) -> None:
    torch.manual_seed(0)
    module, x = cls().to(dtype), torch.randn(3, 7, 48, dtype=dtype)
    state = torch.get_rng_state()
    want = module(x)
    with swap(module, verbose=False) as swapped:
        assert [(r.kind, r.ops) for r in swapped.replaced] == [("rms norm", ("rms_norm",))]
        got = module(x)
        assert got.dtype is dtype
        u = 2.0**-24 if dtype is torch.float32 else 2.0**-8
        assert ((got - want).abs() <= 16 * u * want.abs()).all()
        module.eps = 1.0
        assert (module(x).abs() < want.abs()).all()
        assert module(x.double()).dtype is torch.float64
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("cls", [OnePlusWeight, EpsOutside, WrongDimension, Branching, Centred])
def test_look_alikes_are_left(cls) -> None:
    module = cls()
    with swap(module, verbose=False) as swapped:
        assert not swapped.replaced
        assert "looks like a root mean square norm, but was not verified to be one" in swapped.left[0].reason
