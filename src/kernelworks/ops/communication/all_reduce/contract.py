"""What all_reduce promises; what it shares with other collectives is in ``templates/collective.py``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.templates.collective import REDUCTIONS, Collective

__all__ = ["CONTRACT", "TEMPLATE"]


def _reduced(tensors: Sequence[Tensor], call: Mapping[str, Any]) -> list[Tensor]:
    return [functools.reduce(REDUCTIONS[call["op"]], tensors)] * len(tensors)


def _operator(x: Tensor, call: Mapping[str, Any], group: str) -> Tensor:
    return torch.ops._c10d_functional.all_reduce(x, call["op"], group)  # type: ignore[no-any-return]


TEMPLATE = Collective(
    op_package=__file__,
    formula="output = x of rank 0 (+) x of rank 1 (+) ..., on every rank",
    source="Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 2005",
    definition=_reduced,
    operator=_operator,
    shape=lambda shape, ranks: tuple(shape),
    reduces=True,
    equal=True,
    moved=lambda numel, ranks: 2 * numel * (ranks - 1) / ranks,
)
CONTRACT = TEMPLATE.contract
