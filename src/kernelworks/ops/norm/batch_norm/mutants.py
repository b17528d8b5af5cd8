"""Known-wrong versions of batch_norm, beside those that every norm of channels has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _run(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    return F.batch_norm(x, running_mean, running_var, *others)


def _still(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    """The running statistics of before."""
    return _run(x, *(t if t is None else t.clone() for t in (running_mean, running_var)), *others)


def _always_moves(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    output = _run(x, running_mean, running_var, *others)
    if not others[2] and x.numel() > x.shape[1]:
        _run(x, running_mean, running_var, None, None, True, *others[3:])
    return output


def _other_momentum(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    """The momentum is the share that stays."""
    return _run(x, running_mean, running_var, *others[:3], 1 - others[3], others[4])


def _biased(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    if running_var is None or not others[2] or not x.numel():
        return _run(x, running_mean, running_var, *others)
    before, output = running_var.clone(), _run(x, running_mean, running_var, *others)
    own = x.double().var((0, *range(2, x.dim())), unbiased=False)
    running_var.copy_((1 - others[3]) * before.double() + others[3] * own)
    return output


def _own_always(x: Tensor, running_mean: Any, running_var: Any, weight: Any, bias: Any, *others: Any) -> Tensor:
    if x.numel() <= x.shape[1]:
        return torch.zeros_like(x)
    return (
        _run(x, running_mean, running_var, weight, bias, others[0], *others[1:])
        if others[0]
        else _run(x, None, None, weight, bias, True, *others[1:])
    )


def _first_sample(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    """Statistics of a sample in the place of the batch's."""
    if not others[2] or x[:1].numel() <= x.shape[1]:
        return _run(x, running_mean, running_var, *others)
    return torch.cat([_run(part, running_mean, running_var, *others) for part in x.split(1)])


MUTANTS = (
    Mutant("not moved", _still, "the running statistics stay as they were"),
    Mutant("always moved", _always_moves, "the running statistics are written to where they are what is taken"),
    Mutant("momentum of the old", _other_momentum, "the momentum and its complement change places"),
    Mutant("biased running variance", _biased, "the running variance moves towards the biased one"),
    Mutant("own statistics always", _own_always, "the running statistics are never taken"),
    Mutant("of a sample", _first_sample, "statistics of one sample"),
)
