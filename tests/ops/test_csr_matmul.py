"""What csr_matmul's contract cannot say: sparse tensors of torch's, second derivatives, the same bits of any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS

OP = OPS["csr_matmul"]
GIVEN = OP.request("forward", (torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), torch.ones(2, 3)))
KERNELS = [k.name for k in OP.kernels if k.device == "cpu" and k.guard(GIVEN) is None]


def matrix(M: int, K: int, *, requires_grad: bool = False) -> Tensor:
    dense = torch.randn(M, K) * (torch.rand(M, K) < 0.4)
    return dense.to_sparse_csr().requires_grad_(requires_grad)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("D", [None, 1, 37])
def test_a_sparse_tensor_and_its_gradients_are_torchs(kernel: str, D: int | None) -> None:
    found = []
    A = matrix(9, 14)
    x = torch.randn(14, *(() if D is None else (D,)))
    for product in (lambda a, b: kw.csr_matmul(a, b, kernel=kernel), torch.matmul):
        a, b = A.clone().requires_grad_(), x.clone().requires_grad_()
        y = product(a, b)
        of_a, of_b = torch.autograd.grad(y.square().sum(), (a, b))
        found.append((y.detach(), of_a, of_b))
    ours, torchs = found
    torch.testing.assert_close(ours[0], torchs[0], rtol=1e-5, atol=1e-5)
    assert ours[1].layout is torch.sparse_csr
    entries = A.to_dense() != 0  # torch's own is of every element
    torch.testing.assert_close(ours[1].to_dense(), torchs[1].to_dense() * entries, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[2], torchs[2], rtol=1e-4, atol=1e-4)


def test_what_is_no_matrix_is_refused() -> None:
    A, x = matrix(4, 5), torch.randn(5, 2)
    with pytest.raises(TypeError, match="alone"):
        kw.csr_matmul(A, x, x)  # type: ignore[call-overload]
    for wrong in (torch.randn(4, 2), torch.randn(5, 2, 2), torch.randn(())):
        with pytest.raises(ValueError, match=r"\[5, D\] or \[5\]"):
            kw.csr_matmul(A, wrong)
    with pytest.raises(ValueError, match=r"must have shape \[M, K\]"):
        kw.csr_matmul(torch.stack([matrix(4, 5).to_dense()] * 2).to_sparse_csr(), x)


def test_derivatives_of_derivatives_are_those_of_a_dense_product() -> None:
    crow, column = torch.tensor([0, 2, 2, 5]), torch.tensor([1, 0, 3, 3, 1])
    values, x = torch.randn(5, requires_grad=True), torch.randn(4, 3, requires_grad=True)

    def dense(v: Tensor, b: Tensor) -> Tensor:
        row = torch.tensor([0, 0, 2, 2, 2])
        return torch.zeros(3, 4).index_put((row, column), v, accumulate=True) @ b

    found = []
    for product in (lambda v, b: kw.csr_matmul(crow, column, v, b), dense):
        first = torch.autograd.grad(product(values, x).square().sum(), (values, x), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), (values, x)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k not in ("torch", "reference")])
def test_a_row_has_the_same_bits_wherever_it_stands(kernel: str) -> None:
    A, x = matrix(33, 40), torch.randn(40, 21)
    whole = kw.csr_matmul(A, x, kernel=kernel)
    crow, column, values = A.crow_indices(), A.col_indices(), A.values()
    for r in (0, 17, 32):
        own = slice(int(crow[r]), int(crow[r + 1]))
        ends = torch.tensor([0, own.stop - own.start])
        alone = kw.csr_matmul(ends, column[own], values[own], x, kernel=kernel)
        assert torch.equal(alone[0], whole[r])
