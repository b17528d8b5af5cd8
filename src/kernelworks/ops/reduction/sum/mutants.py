"""Known-wrong versions of sum beside those of every reduction. The proof must reject every one."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]

LONGEST = 2048


def _one_by_one(x: Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None = None) -> Tensor:
    """One element after the other; long lines would take long here, and are summed as they should be."""
    line = x.reshape(-1) if dim is None or not x.dim() else x.movedim(dim, 0)
    right = torch.sum(x.double(), dim, keepdim).to(x.dtype)
    if len(line) > LONGEST:
        return right
    total = torch.zeros(line.shape[1:], dtype=dtype or x.dtype)
    for part in line:
        total = total + part.to(total.dtype)
    return total.to(x.dtype).reshape(right.shape)


def _in(dtype: torch.dtype) -> Callable[..., Tensor]:
    return functools.partial(_one_by_one, dtype=dtype)


MUTANTS = (
    Mutant("bfloat16 accumulation", _in(torch.bfloat16), "the sum is kept in bfloat16"),
    Mutant("float16 accumulation", _in(torch.float16), "the sum is kept in float16"),
    Mutant("the inputs' accumulation", _one_by_one, "the sum is kept in the inputs' dtype"),
    Mutant("one chain", _in(torch.float32), "float32, but one addition after the other"),
    Mutant("mean", lambda x, d, k: torch.mean(x.double(), d, k).to(x.dtype), "divided by the number of elements"),
    Mutant("magnitudes", lambda x, d, k: torch.sum(x.double().abs(), d, k).to(x.dtype), "the signs are lost"),
)
