"""What solve's contract cannot say: singular matrices, vectors, batches that broadcast, second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, linalg

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.signature import by_operator
from kernelworks.nn.rebind import Rebinder

OP = OPS["solve"]
GIVEN = OP.request("forward", (torch.ones(3, 4, 4), torch.ones(3, 4, 2)))
KERNELS = [k.name for k in OP.kernels if k.device == "cpu" and k.guard(GIVEN) is None]


def systems(*batch: int, N: int = 6, K: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(*batch, N, N) / N**0.5 + 2 * torch.eye(N).flip(0), torch.randn(*batch, N, K)


def near(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("vector", [False, True])
def test_it_is_torchs_with_its_gradients(kernel: str, vector: bool) -> None:
    A, B = systems(2, 9)
    B = B[..., 0] if vector else B
    found = []
    for solve in (lambda *a: kw.solve(*a, kernel=kernel), torch.linalg.solve):
        leaves = [t.clone().requires_grad_() for t in (A, B)]
        X = solve(*leaves)
        found.append([X.detach(), *torch.autograd.grad((X**2).sum(), leaves)])
        (alone,) = torch.autograd.grad((solve(leaves[0], B) ** 2).sum(), leaves[:1])
        near(alone, found[-1][1])
        (alone,) = torch.autograd.grad((solve(A, leaves[1]) ** 2).sum(), leaves[1:])
        near(alone, found[-1][2])
    for a, b in zip(*found, strict=True):
        near(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_singular_matrix_raises_as_torch_does_and_is_named(kernel: str) -> None:
    A, B = systems(20)
    A[7, :, 2] = 0.0
    for solve in (lambda *a: kw.solve(*a, kernel=kernel), torch.linalg.solve):
        with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 7.*singular"):
            solve(A, B)


def test_what_the_kernels_do_not_take_is_torchs_with_a_reason() -> None:
    A, B = systems(3, N=33)
    near(kw.solve(A, B), torch.linalg.solve(A, B))
    for other_side in (kw.solve(A.mT, B).mT, kw.solve(A, B.mT, left=False)):
        near(other_side, torch.linalg.solve(A, B.mT, left=False))
    one = A[0]
    near(kw.solve(one, B), torch.linalg.solve(one, B))
    near(kw.solve(A, B[0, :, 0]), torch.linalg.solve(A, B[0, :, 0]))
    with pytest.raises(RuntimeError, match="at most 32 rows, got 33"):
        kw.solve(A, B, kernel=KERNELS[0])
    A, B = systems(3)
    with pytest.raises(RuntimeError, match="as many matrices as right-hand sides"):
        kw.solve(A[0], B, kernel=KERNELS[0])


def test_derivatives_of_derivatives_are_torchs() -> None:
    A, B = systems(4)
    found = []
    for solve in (kw.solve, torch.linalg.solve):
        leaves = [t.clone().requires_grad_() for t in (A, B)]
        first = torch.autograd.grad(solve(*leaves).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    near(torch.func.vmap(kw.solve)(A, B), torch.linalg.solve(A, B))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_system_has_the_same_bits_wherever_it_stands(kernel: str) -> None:
    A, B = systems(37, N=16)
    whole = kw.solve(A, B, kernel=kernel)
    for i in (0, 15, 16, 36):
        assert torch.equal(kw.solve(A[i], B[i], kernel=kernel), whole[i])


class Solver(torch.nn.Module):
    def forward(self, A: Tensor, B: Tensor) -> Tensor:
        return torch.linalg.solve(A, B) + torch.linalg.norm(B)


class OtherSide(torch.nn.Module):
    def forward(self, A: Tensor, B: Tensor) -> Tensor:
        return linalg.solve(A, B.mT, left=False).mT


@pytest.mark.parametrize("model", [Solver(), OtherSide()])
def test_torchs_function_is_known_in_a_model(model: torch.nn.Module) -> None:
    """Looked up as it is written, ``left=False`` by torch; a diagnosis finds the op by torch's operator."""
    A, B = systems(5)
    rebound = Rebinder().rebind(type(model).forward)
    assert rebound is not None
    assert "solve" in rebound.calls
    near(rebound.function(model, A, B), model(A, B))
    assert by_operator("aten::linalg_solve").op is OP
    compiled = torch.compile(kw.solve, fullgraph=True, backend="eager")
    near(compiled(A, B), torch.linalg.solve(A, B))
