"""What all_gather promises; what it shares with other collectives is in ``templates/collective.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.ranks import count_ranks
from kernelworks.templates.collective import Collective

__all__ = ["CONTRACT", "TEMPLATE"]


def _operator(x: Tensor, call: Mapping[str, Any], group: str) -> Tensor:
    made = torch.ops._c10d_functional.all_gather_into_tensor(x, count_ranks(group), group)
    return made  # type: ignore[no-any-return]


TEMPLATE = Collective(
    op_package=__file__,
    formula="output = x of rank 0, x of rank 1, ..., one after the other, on every rank",
    source="Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 2005",
    x="N ...",
    definition=lambda tensors, call: [torch.cat(list(tensors))] * len(tensors),
    operator=_operator,
    shape=lambda shape, ranks: (ranks * shape[0], *shape[1:]),
    reduces=False,
    equal=True,
    moved=lambda numel, ranks: numel * (ranks - 1.0),
)
CONTRACT = TEMPLATE.contract
