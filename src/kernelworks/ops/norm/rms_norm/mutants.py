"""Known-wrong versions of rms_norm. The proof must reject every one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _altered(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None, changed: dict[str, Any]) -> Any:
    s = x.float() if residual is None else x.float() + residual.float()
    squares = s.square()
    axis = changed.get("axis", -1)
    mean = changed.get("mean", lambda q: q.mean(axis, keepdim=True))(squares)
    y = s * torch.rsqrt(mean + changed.get("eps", eps))
    if weight is not None and changed.get("weight", True):
        y = y * weight.float()
    y = changed.get("after", lambda v: v)(y).to(x.dtype)
    return y if residual is None else (y, changed.get("sum", lambda v: v)(s).to(x.dtype))


def _variant(**changed: Any) -> Any:
    return lambda x, weight, eps, residual=None: _altered(x, weight, eps, residual, changed)


def _low_precision(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None) -> Any:
    s = x if residual is None else x + residual
    total = torch.zeros(s.shape[:-1], dtype=torch.bfloat16)
    for j in range(s.shape[-1]):  # the sum is kept in bfloat16
        total = total + s[..., j].bfloat16() ** 2
    y = s.float() * torch.rsqrt(total.float().unsqueeze(-1) / max(s.shape[-1], 1) + eps)
    y = (y if weight is None else y * weight.float()).to(x.dtype)
    return y if residual is None else (y, s)


def _short_tile(squares: Tensor) -> Tensor:
    n = squares.shape[-1]
    kept = squares[..., : n // 16 * 16] if n > 16 else squares
    return kept.sum(-1, keepdim=True) / max(n, 1)


def _stale_tail(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[-1] % 16:
        y[..., -1] = 0.0
    return y


MUTANTS = (
    Mutant("missing eps", _variant(eps=0.0), "eps left out of the root"),
    Mutant("wrong axis", _variant(axis=0), "the mean runs down the columns"),
    Mutant("sum for mean", _variant(mean=lambda q: q.sum(-1, keepdim=True)), "never divided by N"),
    Mutant("missing weight", _variant(weight=False), "the weight is not applied"),
    Mutant("short tile", _variant(mean=_short_tile), "the vector tail is left out of the sum"),
    Mutant("stale tail", _variant(after=_stale_tail), "the last element of a tail is never written"),
    Mutant("zeros", _variant(after=torch.zeros_like), "nothing is written"),
    Mutant("sum not returned", _variant(sum=torch.zeros_like), "the second output is not written"),
    Mutant("bfloat16 accumulation", _low_precision, "the sum of squares is kept in bfloat16"),
)
