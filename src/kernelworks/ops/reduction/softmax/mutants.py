"""Known-wrong versions of softmax, beside those that every op along a dimension has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _of(power: Callable[[Tensor], Tensor], *, shifted: bool = True, scaled: bool = True) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: int) -> Tensor:
        v = x.float()
        e = power(v - v.amax(dim, keepdim=True) if shifted and v.numel() else v)
        return (e / e.sum(dim, keepdim=True) if scaled else e).to(x.dtype)

    return run


MUTANTS = (
    Mutant("no shift", _of(torch.exp, shifted=False), "the maximum is not subtracted: large values overflow"),
    Mutant("not normalised", _of(torch.exp, scaled=False), "never divided by the sum"),
    Mutant("base 2", _of(torch.exp2), "powers of 2 for powers of e"),
    Mutant("low-precision exponential", _of(lambda v: v.bfloat16().exp().float()), "e^x in bfloat16"),
)
