"""The probabilities that attention's backward forms again add up to 1 as well as those of the plain kernel."""

from __future__ import annotations

import pytest
import torch
from op_kernels import runnable_kernels

import kernelworks as kw

WIDE = [kernel for op, kernel in runnable_kernels() if op.name == "attention" and kernel in ("avx512", "avx2")]


def off(kernel: str) -> float:
    """How far the sums are from 1, of few queries with large scores: with ones flowing in they are v's gradient."""
    total = 0.0
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(2, 4, 3, 8, generator=generator) * size for size in (6, 6, 1))
        v.requires_grad_()
        kw.attention(q, k, v, kernel=kernel).sum().backward()
        total += float((v.grad.double().sum(2) - 3).abs().max())
    return total / 30


@pytest.mark.parametrize("kernel", WIDE)
def test_sums_of_probabilities(kernel: str) -> None:
    assert off(kernel) < 4 * off("scalar")  # 3.0; 5.6 where the sum was made of scores that were rounded otherwise
