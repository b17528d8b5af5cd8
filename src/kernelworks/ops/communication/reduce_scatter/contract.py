"""What reduce_scatter promises; what it shares with other collectives is in ``templates/collective.py``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.ranks import count_ranks
from kernelworks.templates.collective import REDUCTIONS, Collective

__all__ = ["CONTRACT", "TEMPLATE"]


def _parts(tensors: Sequence[Tensor], call: Mapping[str, Any]) -> Sequence[Tensor]:
    reduced: Tensor = functools.reduce(REDUCTIONS[call["op"]], tensors)
    return reduced.tensor_split(len(tensors))


def _operator(x: Tensor, call: Mapping[str, Any], group: str) -> Tensor:
    made = torch.ops._c10d_functional.reduce_scatter_tensor(x, call["op"], count_ranks(group), group)
    return made  # type: ignore[no-any-return]


TEMPLATE = Collective(
    op_package=__file__,
    formula="output = part r of x of rank 0 (+) x of rank 1 (+) ..., on rank r",
    source="Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 2005",
    x="N ...",
    definition=_parts,
    operator=_operator,
    shape=lambda shape, ranks: (shape[0] // ranks, *shape[1:]),
    reduces=True,
    equal=False,
    divided=True,
    moved=lambda numel, ranks: numel * (ranks - 1) / ranks,
)
CONTRACT = TEMPLATE.contract
