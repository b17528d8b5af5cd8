"""Known-wrong versions of softmax. The proof must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _altered(x: Tensor, dim: int, changed: dict[str, Any]) -> Tensor:
    v = x.float()
    axis = changed.get("axis", lambda d: d)(dim)
    if changed.get("shifted", True) and v.numel():
        v = v - v.amax(axis, keepdim=True)
    e = changed.get("exp", torch.exp)(v)
    total = changed.get("sum", lambda t, d: t.sum(d, keepdim=True))(e, axis)
    after: Callable[[Tensor], Tensor] = changed.get("after", lambda t: t)
    return after(e / total).to(x.dtype)


def _variant(**changed: Any) -> Any:
    return lambda x, dim: _altered(x, dim, changed)


def _short_tile(e: Tensor, dim: int) -> Tensor:
    n = e.shape[dim]
    return (e.narrow(dim, 0, n // 16 * 16) if n > 16 else e).sum(dim, keepdim=True)


def _low_precision(e: Tensor, dim: int) -> Tensor:
    total = torch.zeros_like(e.sum(dim), dtype=torch.bfloat16)
    for part in e.unbind(dim):  # the sum is kept in bfloat16
        total = total + part.bfloat16()
    return total.float().unsqueeze(dim)


def _stale_tail(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[-1] % 16:
        y[..., -1] = 0.0
    return y


MUTANTS = (
    Mutant("no shift", _variant(shifted=False), "the maximum is not subtracted: large values overflow"),
    Mutant("wrong axis", _variant(axis=lambda d: 0), "always along the first dimension"),
    Mutant("last axis", _variant(axis=lambda d: -1), "always along the last dimension"),
    Mutant("not normalised", _variant(sum=lambda e, d: 1.0), "never divided by the sum"),
    Mutant("base 2", _variant(exp=torch.exp2), "powers of 2 for powers of e"),
    Mutant("low-precision exponential", _variant(exp=lambda v: v.bfloat16().exp().float()), "e^x in bfloat16"),
    Mutant("short tile", _variant(sum=_short_tile), "the vector tail is left out of the sum"),
    Mutant("stale tail", _variant(after=_stale_tail), "the last element of a tail is never written"),
    Mutant("zeros", _variant(after=torch.zeros_like), "nothing is written"),
    Mutant("bfloat16 accumulation", _variant(sum=_low_precision), "the sum is kept in bfloat16"),
)
