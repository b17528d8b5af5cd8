"""Known-wrong versions of cross_entropy. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _altered(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, changed: dict[str, Any]) -> Tensor:
    x = logits.double()
    top = x.amax(-1, keepdim=True) if changed.get("shifted", True) else torch.zeros(len(x), 1, dtype=x.dtype)
    e = (x - top).float().exp() if not changed.get("shifted", True) else (x - top).exp()
    total = changed.get("sum", lambda t: t.sum(-1))(e).double()
    log = changed.get("log", torch.log)(total) + top.squeeze(-1)
    valid = target != ignore_index if changed.get("ignores", True) else torch.ones_like(target, dtype=torch.bool)
    picked = target.clamp(0, x.shape[-1] - 1)
    if changed.get("shift_target", 0):
        picked = (picked + 1) % x.shape[-1]
    losses = torch.where(valid, log - x.gather(-1, picked.unsqueeze(-1)).squeeze(-1), 0.0)
    after: Callable[[Tensor], Tensor] = changed.get("after", lambda t: t)
    if reduction == "none":
        return after(losses).to(logits.dtype)
    count = len(target) if changed.get("count_all") else valid.sum()
    mean = reduction == "mean" and changed.get("mean", True)
    return after(losses.sum() / count if mean else losses.sum()).to(logits.dtype)


def _variant(**changed: Any) -> Any:
    return lambda logits, target, ignore_index, reduction: _altered(logits, target, ignore_index, reduction, changed)


def _short_tile(e: Tensor) -> Tensor:
    n = e.shape[-1]
    return (e[..., : n // 16 * 16] if n > 16 else e).sum(-1)


def _low_precision(e: Tensor) -> Tensor:
    total = torch.zeros(e.shape[:-1], dtype=torch.bfloat16)
    for j in range(e.shape[-1]):  # the sum is kept in bfloat16
        total = total + e[..., j].bfloat16()
    return total


MUTANTS = (
    Mutant("no shift", _variant(shifted=False), "the maximum is not subtracted: large logits overflow"),
    Mutant("ignore_index not ignored", _variant(ignores=False), "ignored rows enter the loss"),
    Mutant("ignored rows counted", _variant(count_all=True), "the mean is over all rows"),
    Mutant("sum for mean", _variant(mean=False), "never divided by the count"),
    Mutant("off-by-one target", _variant(shift_target=1), "the logit after the target's"),
    Mutant("base 2", _variant(log=torch.log2), "bits for nats"),
    Mutant("short tile", _variant(sum=_short_tile), "the vector tail is left out of the sum"),
    Mutant("zeros", _variant(after=torch.zeros_like), "nothing is written"),
    Mutant("bfloat16 accumulation", _variant(sum=_low_precision), "the sum is kept in bfloat16"),
)
