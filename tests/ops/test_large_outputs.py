"""Outputs of more than 2^31 elements. The input is one row seen many times, so only the output takes memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

import kernelworks as kw

N = 2048
M = 2**20 + 3  # M N = 2^31 + 6144
NEEDED = int(2.6 * M * N)  # bytes: the output in bfloat16 and some to spare

CALLS: dict[str, Callable[[Tensor, Tensor, str], Any]] = {
    "rms_norm": lambda x, w, kernel: kw.rms_norm(x, w, eps=1e-6, kernel=kernel),
    "softmax": lambda x, w, kernel: kw.softmax(x, kernel=kernel),
    "gelu": lambda x, w, kernel: kw.gelu(x, approximate="tanh", kernel=kernel),
    "embedding": lambda x, w, kernel: kw.embedding(
        torch.zeros(M, dtype=torch.int64), x[:1].contiguous(), kernel=kernel
    ),
}


def _widest(op: str) -> str:
    from kernelworks.dispatch.op import OPS
    from kernelworks.verify import verifiable_kernels

    kernels, _ = verifiable_kernels(OPS[op])
    return kernels[0].name


@pytest.mark.thorough  # gigabytes; cases whose rows lie 2^31 elements apart are everywhere
@pytest.mark.xdist_group("memory")
@pytest.mark.parametrize("op", CALLS)
def test_more_than_two_to_the_31_elements(op: str) -> None:
    free = psutil.virtual_memory().available
    assert free > NEEDED, f"this test needs {NEEDED / 2**30:.1f} GiB free, {free / 2**30:.1f} are"
    row = torch.randn(1, N, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.ones(N, dtype=torch.bfloat16)
    name = _widest(op)
    small = CALLS[op](row.expand(3, N), weight, name)[0] if op != "embedding" else row[0]
    out = CALLS[op](row.expand(M, N), weight, name)
    assert out.numel() > 2**31
    for i in (0, 1, 2**19, 2**20 - 1, 2**20, 2**20 + 1, M - 1):
        assert torch.equal(out[i], small), i
