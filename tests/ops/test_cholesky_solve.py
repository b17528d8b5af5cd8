"""What cholesky_solve's contract cannot say: batches that broadcast, second derivatives, singular factors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS

OP = OPS["cholesky_solve"]
GIVEN = OP.request("forward", (torch.ones(3, 4, 2), torch.ones(3, 4, 4), False))
KERNELS = [k.name for k in OP.kernels if k.device == "cpu" and k.guard(GIVEN) is None]


def systems(*batch: int, N: int = 6, K: int = 2) -> tuple[Tensor, Tensor]:
    L = torch.randn(*batch, N, N).tril(-1) * 0.3 + torch.diag_embed(1 + torch.rand(*batch, N))
    return torch.randn(*batch, N, K), L


def near(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("upper", [False, True])
def test_it_is_torchs_with_its_gradients(kernel: str, upper: bool) -> None:
    B, L = systems(2, 9)
    L = L.mT.contiguous() if upper else L
    found = []
    for solve in (lambda *a: kw.cholesky_solve(*a, kernel=kernel), torch.cholesky_solve):
        leaves = [t.clone().requires_grad_() for t in (B, L)]
        X = solve(*leaves, upper)
        found.append([X.detach(), *torch.autograd.grad((X**2).sum(), leaves)])
        (alone,) = torch.autograd.grad((solve(leaves[0], L, upper) ** 2).sum(), leaves[:1])
        near(alone, found[-1][1])
        (alone,) = torch.autograd.grad((solve(B, leaves[1], upper) ** 2).sum(), leaves[1:])
        near(alone, found[-1][2])
    for a, b in zip(*found, strict=True):
        near(a, b)


def test_batches_that_broadcast_are_torchs() -> None:
    B, _ = systems(3, 5)
    _, L = systems(5)
    leaves = [t.clone().requires_grad_() for t in (B, L)]
    for kernel in ("torch", "reference", None):
        X = kw.cholesky_solve(*leaves, kernel=kernel)
        got = torch.autograd.grad(X.square().sum(), leaves)
        want = torch.autograd.grad(torch.cholesky_solve(*leaves).square().sum(), leaves)
        near(X, torch.cholesky_solve(B, L))
        for a, b in zip(got, want, strict=True):
            near(a, b)
    for name in KERNELS:
        with pytest.raises(RuntimeError, match="as many matrices as right-hand sides"):
            kw.cholesky_solve(B, L, kernel=name)


def test_larger_matrices_are_torchs_with_a_reason() -> None:
    B, L = systems(3, N=33)
    near(kw.cholesky_solve(B, L), torch.cholesky_solve(B, L))
    with pytest.raises(RuntimeError, match="at most 32 rows, got 33"):
        kw.cholesky_solve(B, L, kernel=KERNELS[0])


def test_derivatives_of_derivatives_are_torchs() -> None:
    B, L = systems(4)
    found = []
    for solve in (kw.cholesky_solve, torch.cholesky_solve):
        leaves = [t.clone().requires_grad_() for t in (B, L)]
        first = torch.autograd.grad(solve(*leaves).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
    near(torch.func.vmap(kw.cholesky_solve)(B, L), torch.cholesky_solve(B, L))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_singular_factor_spoils_no_other_system(kernel: str) -> None:
    B, L = systems(20)
    clean = kw.cholesky_solve(B, L, kernel=kernel)
    L[7, 2, 2] = 0.0
    got = kw.cholesky_solve(B, L, kernel=kernel)
    others = torch.arange(20) != 7
    assert torch.equal(got[others], clean[others])
    assert not bool(got[7].isfinite().all())


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_system_has_the_same_bits_wherever_it_stands(kernel: str) -> None:
    B, L = systems(37, N=16)
    whole = kw.cholesky_solve(B, L, kernel=kernel)
    for i in (0, 15, 16, 36):
        assert torch.equal(kw.cholesky_solve(B[i], L[i], kernel=kernel), whole[i])
