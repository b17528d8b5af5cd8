"""The table of reductions: every entry's kernels against float64 where they fail, torch's conventions, dimensions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_kernels import asked_kernels
from torch import Tensor

import kernelworks as kw
from kernelworks.contract import Case
from kernelworks.contract.reduced_dims import count_of, dims_of, reduced_lines, reduced_shape
from kernelworks.dispatch.op import OPS
from kernelworks.ops.reduction.loss_table.contract import TABLE as LOSS_TABLE
from kernelworks.ops.reduction.reduction_table.contract import TABLE
from kernelworks.verify.checks import bad_inputs, surviving_mutants
from kernelworks.verify.parity import parities

ENTRIES = TABLE.entries
KERNELS = [kernel.name for kernel in asked_kernels(OPS["amax"]) if kernel.device == "cpu"]
# What tells most: tails, dimensions that are no neighbours, columns, cut lines, and every number.
TELLING = (
    "N=3", "N=33", "N=513", "dim (0, 2) of [3, 4, 5, 6]", "dim 0 of [300, 70]", "dim () of [5, 6]", "dim None of []",
    "nan, dim 0 of [40, 19]", "few values, dim 0 of [40, 19]", "huge, dim 0 of [40, 19]", "inf N=33",
    "large_mean, dim None of [5, 7, 30]", "close, dim -1 of [3, 5000]", "far, dim 0 of [40, 19]",
    "dim (0, 2) of [3, 4, 5], kept", "dim 0 of [20003, 5]",
)  # fmt: skip


def cases_of(name: str) -> tuple[Case, ...]:
    cases = OPS[name].contract.cases
    own = [c for c in cases if any(f", {number} " in c.name for number in ENTRIES[name].numbers)]
    telling = {t if ENTRIES[name].every else t.replace("None", "()") for t in TELLING}
    told = {c.name: c for c in cases if c.name in telling}
    assert telling == told.keys()
    return (*told.values(), *(replace(case, dtypes=case.dtypes[:1]) for case in own))


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_keeps_its_contract_and_its_mutants_do_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, cases = OPS[name], cases_of(name)
    tried = [(kernel, case, d) for case in cases for d in case.dtypes for kernel in (KERNELS[0], "scalar")]
    found = [parity for one in tried for parity in parities(op, *one)]
    assert {p.pass_ for p in found} >= {"forward", "backward"}
    assert [f"{p.kernel} {p.case} {p.dtype}: {p.message}" for p in found if not p.ok] == []
    monkeypatch.setattr(op, "contract", replace(op.contract, cases=cases))
    assert len(op.mutants) >= 10 and surviving_mutants(op) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_refuses_bad_input(name: str) -> None:
    assert [wrong for _, wrong in bad_inputs(OPS[name], "scalar", getattr(kw, name)) if wrong] == []


def test_torchs_conventions_hold() -> None:
    inf, nan = math.inf, math.nan
    for kernel in KERNELS:
        x = torch.tensor([[1.0, nan, 3.0], [-inf, -inf, -inf], [inf, 1.0, -inf]])
        got = [kw.logsumexp(x, 1, kernel=kernel), kw.amax(x, 1, kernel=kernel), kw.amin(x, 1, kernel=kernel)]
        want = [torch.logsumexp(x, 1), torch.amax(x, 1), torch.amin(x, 1)]
        for mine, torchs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, torchs, equal_nan=True)
        one = torch.ones(1)
        assert (
            kw.var(one, kernel=kernel).isnan()
            and kw.var(torch.tensor([1.0, 2.0]), correction=2.0, kernel=kernel) == inf
        )
        large = torch.full((5,), 1e30)
        torch.testing.assert_close(kw.norm(large, kernel=kernel), torch.tensor(5**0.5 * 1e30))
        torch.testing.assert_close(kw.norm(large * 1e-60, kernel=kernel), torch.tensor(5**0.5 * 1e-30))
        near = torch.tensor([1e6, 1e6 + 0.0625] * 3000)
        torch.testing.assert_close(kw.var(near, kernel=kernel), near.double().var().float(), rtol=1e-6, atol=0.0)


def test_equal_elements_share_the_gradient() -> None:
    x = torch.tensor([[2.0, 2.0, 1.0], [3.0, 1.0, 3.0]], requires_grad=True)
    for kernel in KERNELS:
        (grad,) = torch.autograd.grad(kw.amax(x, 1, kernel=kernel).sum(), x)
        assert grad.tolist() == [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]


def test_a_variance_over_an_empty_list_of_dimensions_has_a_gradient() -> None:
    """Where torch's own divides by one less than the one dimension that it takes no list for."""
    x = torch.randn(4, 5, requires_grad=True)
    (want,) = torch.autograd.grad(torch.var(x), x)
    (got,) = torch.autograd.grad(kw.var(x, (), kernel="reference"), x)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dim", [None, (), 0, -1, (1,), (0, 1), (0, 2), (2, 0), [1, 2], (0, 1, 2)])
@pytest.mark.parametrize("turned", [False, True])
def test_lines_are_the_elements_that_become_one(dim: Any, turned: bool) -> None:
    x = torch.arange(2.0 * 3 * 5).reshape(2, 3, 5)
    x = x.permute(2, 0, 1) if turned else x
    found = reduced_lines(x, dim)
    data = found.tensor.as_strided((found.outer, found.n, found.inner), (found.outer_stride, found.stride, 1))
    want = torch.sum(x, dim)
    assert torch.equal(data.sum(1).reshape(reduced_shape(tuple(x.shape), dim, False)), want)
    assert found.n == count_of(tuple(x.shape), dim)
    assert dims_of(tuple(x.shape), dim) is None or len(dims_of(tuple(x.shape), dim) or ()) == x.dim() - want.dim()


def test_a_swap_takes_calls_in_torchs_signature() -> None:
    x = torch.randn(4, 6)
    pairs: list[tuple[Tensor, Tensor]] = [
        (kw.mean(input=x, dim=(0, 1)), torch.mean(x, (0, 1))),
        (kw.norm(x, "fro"), torch.norm(x, "fro")),
        (kw.norm(input=x, p=3.0, dim=0), torch.norm(x, 3.0, 0)),  # torch's own
        (kw.var(x, 1, False), torch.var(x, 1, False)),
        (kw.var(x, unbiased=False), torch.var(x, unbiased=False)),
        (kw.std(x, 0, correction=0), torch.std(x, 0, correction=0)),
        (kw.amax(x, (), True), torch.amax(x, (), True)),
        (kw.mean(x, 0, dtype=torch.float64), torch.mean(x, 0, dtype=torch.float64)),
    ]
    for mine, torchs in pairs:
        torch.testing.assert_close(mine, torchs)


# ---------------------------------------------------------------- losses

LOSSES = LOSS_TABLE.entries


def loss_cases(name: str) -> tuple[Case, ...]:
    """Tails and cut lines, every word, number, flag and weight, infinities and NaN."""
    cases = OPS[name].contract.cases
    shown = ("[3, 33]", "[3, 3]", "[5, 33]", "[7, 129]", "[2, 3, 4, 40]", "[3, 150001]")
    return tuple(
        replace(case, dtypes=case.dtypes[:1]) if "[5, 33]" in case.name else case
        for case in cases
        if any(size in case.name for size in shown)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_keeps_its_contract_and_its_mutants_do_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, cases = OPS[name], loss_cases(name)
    tried = [(kernel, case, d) for case in cases for d in case.dtypes for kernel in (KERNELS[0], "scalar")]
    found = [parity for one in tried for parity in parities(op, *one)]
    assert {p.pass_ for p in found} >= {"forward", "backward"}
    assert [f"{p.kernel} {p.case} {p.dtype}: {p.message}" for p in found if not p.ok] == []
    monkeypatch.setattr(op, "contract", replace(op.contract, cases=cases))
    assert len(op.mutants) >= 10 and surviving_mutants(op) == []
    assert [wrong for _, wrong in bad_inputs(op, "scalar", getattr(kw, name)) if wrong] == []


def test_a_loss_is_torchs_where_a_kernel_says_another() -> None:
    x, target = torch.randn(4, 6), torch.rand(4, 6)
    pairs: list[tuple[Tensor, Tensor]] = [
        (kw.mse_loss(input=x, target=target, weight=target), F.mse_loss(x, target, weight=target)),
        (kw.mse_loss(x, target, size_average=False), F.mse_loss(x, target, size_average=False)),
        (kw.huber_loss(input=x, target=target, reduction="sum", delta=0.3), F.huber_loss(x, target, "sum", 0.3)),
        (
            kw.binary_cross_entropy_with_logits(input=x, target=target, weight=target[:, :1]),
            F.binary_cross_entropy_with_logits(x, target, target[:, :1]),
        ),
    ]
    for mine, torchs in pairs:
        torch.testing.assert_close(mine, torchs)
