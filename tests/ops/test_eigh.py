"""What eigh's contract cannot say: the function's own result, derivatives, clusters, what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS

OP = OPS["eigh"]
KERNELS = [k.name for k in OP.kernels if k.device == "cpu" and k.guard(OP.request("forward", (torch.eye(4),))) is None]


def matrices(*batch: int, N: int = 6) -> Tensor:
    A = torch.randn(*batch, N, N)
    return A + A.mT + 3 * torch.arange(N).diag()


def projectors(result: tuple[Tensor, Tensor]) -> list[Tensor]:
    """What no choice of signs changes."""
    w, V = result
    return [w, V @ V.mT, (V * w.sigmoid().unsqueeze(-2)) @ V.mT]


@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_it_is_torchs_with_gradients_of_what_signs_do_not_change(kernel: str | None) -> None:
    A, found = matrices(2, 9), []
    for eigh in (lambda a: kw.eigh(a, kernel=kernel), torch.linalg.eigh):
        leaf = A.clone().requires_grad_()
        result = eigh(leaf)
        assert type(result) is torch.return_types.linalg_eigh
        w, _, smoothed = projectors(result)
        found.append([w.detach(), smoothed.detach()])
        if kernel is None:  # the kernels are forwards alone
            found[-1] += torch.autograd.grad(smoothed.square().sum() + w.sin().sum(), leaf)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_matrix_without_an_answer_raises_torchs_error_and_is_named(kernel: str, value: float) -> None:
    A = matrices(20)
    A[7, 4, 2] = value
    with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 7"):
        kw.eigh(A, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_eigenvalues_have_vectors_at_right_angles(kernel: str) -> None:
    Q = torch.linalg.qr(torch.randn(17, 16, 16, dtype=torch.float64))[0]
    A = (Q * torch.tensor([1.0, 1.0, 2.0, 2.0 + 1e-7]).repeat(4).double()) @ Q.mT
    w, V = (t.double() for t in kw.eigh(A.float(), kernel=kernel))
    torch.testing.assert_close(V.mT @ V, torch.eye(16).double().expand(17, -1, -1), rtol=0, atol=1e-5)
    torch.testing.assert_close(A @ V, V * w.unsqueeze(-2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", ["torch", "reference", None])
def test_equal_eigenvalues_have_gradients_and_vectors_that_nothing_is_asked_of_have_none(kernel: str | None) -> None:
    A = torch.stack([torch.eye(5), torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0]))]).requires_grad_()
    w, V = kw.eigh(A, kernel=kernel)
    asked = w.square().sum()
    torch.testing.assert_close(torch.autograd.grad(asked, A, retain_graph=True)[0], 2 * A.detach())
    sums = asked + (V[1, :, 4] * torch.arange(5.0)).sum()  # of a vector that is its own value's alone
    assert torch.autograd.grad(sums, A)[0].isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_matrix_has_the_same_bits_wherever_it_stands(kernel: str) -> None:
    A = matrices(37, N=16)
    whole = kw.eigh(A, kernel=kernel)
    for i in (0, 15, 16, 36):
        assert all(map(torch.equal, kw.eigh(A[i], kernel=kernel), (t[i] for t in whole)))


def test_larger_matrices_are_torchs_and_second_derivatives_too() -> None:
    A = matrices(2, N=33)
    torch.testing.assert_close(kw.eigh(A)[0], torch.linalg.eigh(A)[0])
    with pytest.raises(RuntimeError, match="at most 32 rows, got 33"):
        kw.eigh(A, kernel=KERNELS[0])
    found = []
    for eigh in (kw.eigh, torch.linalg.eigh):
        leaf = matrices(N=5).mul(0).add(torch.arange(25.0).reshape(5, 5).sin() + torch.arange(5).diag())
        leaf = leaf.requires_grad_()
        (first,) = torch.autograd.grad(projectors(eigh(leaf))[2].square().sum(), leaf, create_graph=True)
        found += torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)
