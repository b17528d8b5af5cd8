"""What argmin promises."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelworks.contract import Mutant
from kernelworks.templates.reduction import Reduction

__all__ = ["CONTRACT", "TEMPLATE"]


class SmallestElement(Reduction):
    """Where a NaN that is no number is the last to be chosen, and not the first, it is infinity."""

    def _mutants(self) -> Iterator[Mutant]:
        yield from (mutant for mutant in super()._mutants() if mutant.name != "NaN ignored")
        yield Mutant(
            "NaN ignored", lambda x, *rest: torch.argmin(x.nan_to_num(torch.inf, torch.inf, -torch.inf), *rest),
            "NaN is infinity",
        )  # fmt: skip


TEMPLATE = SmallestElement(
    op_package=__file__,
    formula="output = the smallest i with x_i = min x, along dim; NaN is below all numbers",
    source="torch.argmin",
    function=torch.argmin,
    aten="argmin",
    flop=1.0,
    nanoseconds=0.4,
    dtype=torch.int64,
)
CONTRACT = TEMPLATE.contract
