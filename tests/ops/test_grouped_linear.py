"""grouped_linear beyond its contract: threads, offsets that cannot be, and torch's signature."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_kernels import runnable_kernels, runs_here
from torch import Tensor

import kernelworks as kw
from kernelworks.contract.offsets_argument import check_offsets
from kernelworks.dispatch.op import OPS

PLAIN = {"triton", "torch", "reference"}
OP = OPS["grouped_linear"]
WIDEST = [kernel.name for kernel in OP.kernels if kernel.device == "cpu" and kernel.source and runs_here(kernel)][:1]
OURS = [kernel for op, kernel in runnable_kernels() if op.name == "grouped_linear" and kernel not in PLAIN]


def made(lengths: list[int], n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(len(lengths))
    e = len(lengths)
    weight = (torch.randn(e, n, k) * 0.1).to(dtype)
    return torch.randn(sum(lengths), k).to(dtype), weight, torch.tensor(lengths).cumsum(0), torch.randn(e, n).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", WIDEST)
def test_the_same_bits_however_the_work_is_shared(kernel: str, dtype: torch.dtype) -> None:
    """A hot group of more rows than a panel has, and groups of every algorithm beside it."""
    x, weight, offsets, bias = made([1, 0, 9, 1200, 33, 2, 14], 200, 130, dtype)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
            y = kw.grouped_linear(leaves[0], leaves[1], offsets, leaves[2], kernel=kernel)
            results.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))


@pytest.mark.parametrize("kernel", [*OURS, "torch", "reference"])
@pytest.mark.parametrize("offsets", [[3, 2, 6], [0, 2, 7], [-1, 2, 6], [2, 6, -3]])
def test_offsets_that_cannot_be_are_refused_before_anything_is_written(kernel: str, offsets: list[int]) -> None:
    out = torch.full((6, 5), 7.0)
    for dtype in (torch.int32, torch.int64):
        with pytest.raises(IndexError, match="offsets must rise from 0 to at most 6"):
            kw.grouped_linear(torch.ones(6, 4), torch.ones(3, 5, 4), torch.tensor(offsets, dtype=dtype), out=out,
                              kernel=kernel)  # fmt: skip
    assert (out == 7.0).all()
    with pytest.raises(IndexError, match="for group"):
        check_offsets("offsets", torch.tensor(offsets), 6)


def test_a_loop_over_groups_and_torchs_function_say_the_same() -> None:
    x, weight, offsets, _ = made([4, 0, 8, 20], 16, 32, torch.float32)
    want = torch.cat([F.linear(rows, w) for rows, w in zip(x.split([4, 0, 8, 20]), weight, strict=True)])
    ends = offsets.int()
    for got in (
        kw.grouped_linear(x, weight, offsets), F.grouped_mm(x, weight.mT, offs=ends),
        kw.grouped_linear(x, weight.mT, offs=ends), kw.grouped_linear(mat_a=x, mat_b=weight.mT, offs=ends),
    ):  # fmt: skip
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", OURS)
def test_offsets_may_be_any_view(kernel: str) -> None:
    x, weight, offsets, bias = made([4, 0, 8, 20], 6, 10, torch.float32)
    apart = torch.stack([offsets, offsets * 0 + 99], 1)[:, 0]
    want = kw.grouped_linear(x, weight, offsets, bias, kernel="reference")
    torch.testing.assert_close(kw.grouped_linear(x, weight, apart, bias, kernel=kernel), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [None, "torch", *OURS])
@pytest.mark.parametrize("rows", [0, 3])
def test_without_a_row_of_any_group_gradients_are_zeros(kernel: str | None, rows: int) -> None:
    """A step of training in which no token came: its backward is no error."""
    leaves = [t.requires_grad_() for t in (torch.randn(rows, 4), torch.randn(2, 3, 4), torch.randn(2, 3))]
    for wanted in ([0], [1], [2], [0, 1, 2]):
        given = [t if i in wanted else t.detach() for i, t in enumerate(leaves)]
        y = kw.grouped_linear(given[0], given[1], torch.zeros(2, dtype=torch.int32), given[2], kernel=kernel)
        assert torch.equal(y, torch.zeros(rows, 3))
        for found, leaf in zip(torch.autograd.grad(y.sum(), [leaves[i] for i in wanted]), wanted, strict=True):
            assert torch.equal(found, torch.zeros_like(leaves[leaf]))
