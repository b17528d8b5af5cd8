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
