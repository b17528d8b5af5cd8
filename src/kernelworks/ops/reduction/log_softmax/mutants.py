"""Known-wrong versions of log_softmax, beside those that every op along a dimension has."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _unshifted(x: Tensor, dim: int) -> Tensor:
    v = x.float()
    return (v - v.exp().sum(dim, keepdim=True).log()).to(x.dtype)


def _of_rounded(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x.float(), dim).log().to(x.dtype)


MUTANTS = (
    Mutant("no shift", _unshifted, "the maximum is not subtracted: large values overflow"),
    Mutant("logarithm of softmax", _of_rounded, "what underflows in softmax becomes -inf"),
    Mutant("softmax", lambda x, dim: torch.softmax(x, dim), "the logarithm is left out"),
    Mutant("base 2", lambda x, dim: torch.log_softmax(x, dim) * 1.4426950408889634, "the logarithm to base 2"),
)
