"""Known-wrong versions of linear_cross_entropy. The verification must reject every one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _altered(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, changed: dict[str, Any]
) -> Tensor:
    rows, wanted = x.double().reshape(target.numel(), x.shape[-1]), target.reshape(-1)
    if changed.get("last_row") is False:
        rows, wanted = rows[:-1], wanted[:-1]
    if changed.get("last_term") is False:
        rows = torch.cat((rows[:, :-1], torch.zeros_like(rows[:, -1:])), 1)
    z = rows @ weight.double().T
    if bias is not None and changed.get("bias", True):
        z = z + bias.double()
    z = z.to(changed["kept"]).double() if "kept" in changed else z
    valid = wanted != ignore_index if changed.get("ignores", True) else torch.ones_like(wanted, dtype=torch.bool)
    picked = wanted.clamp(0, z.shape[1] - 1)
    if changed.get("shift_target"):
        picked = (picked + 1) % z.shape[1]
    e = (z - z.amax(-1, keepdim=True)).exp()
    classes = z.shape[1] // 16 * 16 if changed.get("short_tile") and z.shape[1] > 16 else z.shape[1]
    losses = e[:, :classes].sum(-1).log() + z.amax(-1) - z.gather(-1, picked.unsqueeze(-1)).squeeze(-1)
    count = len(wanted) if changed.get("count_all") else valid.sum()
    loss = torch.where(valid, losses, 0.0).sum() / (count if changed.get("mean", True) else 1)
    factor: float = changed.get("scale", 1.0)
    return (loss * factor).float()


def _variant(**changed: Any) -> Any:
    return lambda x, weight, target, bias, ignore_index: _altered(x, weight, target, bias, ignore_index, changed)


MUTANTS = (
    Mutant("bias left out", _variant(bias=False), "the logits lack the bias"),
    Mutant("ignore_index not ignored", _variant(ignores=False), "ignored rows enter the loss"),
    Mutant("ignored rows counted", _variant(count_all=True), "the mean is over all rows"),
    Mutant("sum for mean", _variant(mean=False), "never divided by the count"),
    Mutant("off-by-one target", _variant(shift_target=True), "the logit after the target's"),
    Mutant("last row lost", _variant(last_row=False), "the last chunk of rows is one short"),
    Mutant("last term lost", _variant(last_term=False), "the product runs over K - 1 terms"),
    Mutant("short tile", _variant(short_tile=True), "the vector tail is left out of the sum"),
    Mutant("logits in bfloat16", _variant(kept=torch.bfloat16), "float32 logits are kept in bfloat16"),
    Mutant("zeros", _variant(scale=0.0), "nothing is written"),
)
