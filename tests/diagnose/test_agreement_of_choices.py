"""A changed module that names another of equal elements gives the same answer; one that names a wrong one does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.diagnose.verify.precision import PerturbedRounding

Choose = Callable[[Tensor, int], tuple[Tensor, Tensor]]


class Router(nn.Module):
    """The best four of each row of scores of which many are equal, and their weights."""

    choose: Choose = staticmethod(lambda scores, k: torch.topk(scores, k))

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = self.choose(scores, 4)
        return values.softmax(-1), indices.reshape(-1, 2)


def last_of_equals(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(scores.flip(-1), dim=-1, descending=True, stable=True)
    return values[:, :k], (scores.shape[-1] - 1 - indices)[:, :k]


def another_value(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = last_of_equals(scores, k)
    return values, torch.where(torch.arange(len(indices))[:, None] == 7, scores.argmin(-1, keepdim=True), indices)


def one_twice(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = last_of_equals(scores, k)
    twice = (values[:, 1] == values[:, 0])[:, None] & (torch.arange(k) == 1)
    return values, torch.where(twice, indices[:, :1], indices)


@pytest.mark.parametrize(("choose", "agrees"), [(last_of_equals, True), (another_value, False), (one_twice, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_choice_among_equals(choose: Choose, agrees: bool, dtype: torch.dtype) -> None:
    # Halves and whole numbers, far apart: rounding moves none past another but equal ones.
    scores = (torch.randn(300, 32, generator=torch.Generator().manual_seed(0)) * 2).round().to(dtype)

    @contextlib.contextmanager
    def changed(module: Any) -> Iterator[None]:
        module.choose = choose
        try:
            yield
        finally:
            del module.choose

    router = Router()
    before, after = Router()(scores)[1], choose(scores, 4)[1].reshape(-1, 2)
    assert not torch.equal(before, after)
    found = compare([Sample(router, (scores,), {}, True)], changed=changed, untouched=lambda module: False)
    assert found.agrees is agrees, found.note


class Experts(nn.Module):
    """Tokens sorted by their expert, each expert's rows multiplied by its weights: where they begin is counted."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(16, 5, bias=False)
        self.weight = nn.Parameter(torch.randn(5, 16, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        ids = self.router(x).argmax(-1)
        order = ids.argsort(stable=True)
        counts = torch.histc(ids.float(), bins=5, min=0, max=4)
        ends = counts.cumsum(0).to(torch.int64).tolist()
        rows, answer = x[order], torch.full_like(x, float("nan"))
        for weight, begin, end in zip(self.weight, [0, *ends], ends, strict=False):
            answer[order[begin:end]] = rows[begin:end] @ weight
        return answer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_many_rows_an_expert_has_is_no_rounding(dtype: torch.dtype) -> None:
    """A count that is moved leaves rows that nobody wrote."""
    experts, x = Experts().to(dtype), torch.randn(64, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        plain, ids = experts(x), experts.router(x).argmax(-1)
        for seed in range(4):
            with PerturbedRounding(seed):
                moved = experts(x)
            assert bool(moved.isfinite().all()) and not torch.equal(moved, plain)
            same = (experts.router(x).argmax(-1) == ids)[:, None]  # a tie may go to another expert
            torch.testing.assert_close(moved * same, plain * same, rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("values", "moves"), [([0.0, 3.0, -7.0], False), ([0.0, 3.0, -7.5], True), ([130.0, 131.0, 200.0], True)]
)
def test_what_a_dtype_has_no_fractions_of_is_no_count(values: list[float], moves: bool) -> None:
    """From 128 on bfloat16 has whole numbers alone."""
    x = torch.tensor(values * 16, dtype=torch.bfloat16)
    with PerturbedRounding(0):
        assert torch.equal(x.abs(), torch.tensor(values * 16, dtype=torch.bfloat16).abs()) is not moves
