"""Known-wrong versions of instance_norm, beside those that every norm of channels has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _run(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    return F.instance_norm(x, running_mean, running_var, *others)


def _still(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    """The running statistics of before."""
    return _run(x, *(t if t is None else t.clone() for t in (running_mean, running_var)), *others)


def _of_the_batch(x: Tensor, *others: Any) -> Tensor:
    return F.batch_norm(x, *others) if x.numel() else torch.zeros_like(x)


def _last_sample(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    """The running statistics move towards one sample's."""
    if running_mean is None or not others[2] or not x.numel():
        return _run(x, running_mean, running_var, *others)
    output = _still(x, running_mean, running_var, *others)
    _run(x[-1:], running_mean, running_var, *others)
    return output


def _each_sample(x: Tensor, running_mean: Any, running_var: Any, *others: Any) -> Tensor:
    """The running statistics move once for each sample."""
    return torch.cat([_run(part, running_mean, running_var, *others) for part in x.split(1)])


def _of_a_sample(x: Tensor, running_mean: Any, running_var: Any, weight: Any, bias: Any, *others: Any) -> Tensor:
    """All channels of a sample share their statistics."""
    if not others[0]:
        return torch.zeros_like(x)
    return F.group_norm(x, 1, weight, bias, others[2])


MUTANTS = (
    Mutant("not moved", _still, "the running statistics stay as they were"),
    Mutant("of the batch", _of_the_batch, "statistics of all samples"),
    Mutant("towards the last sample", _last_sample, "the running statistics take in one sample"),
    Mutant("moved by each sample", _each_sample, "the running statistics move as often as there are samples"),
    Mutant("of all channels", _of_a_sample, "the channels of a sample share their statistics"),
)
