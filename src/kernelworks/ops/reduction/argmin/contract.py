"""What argmin promises."""

from __future__ import annotations

import torch

from kernelworks.templates.reduction import Reduction

__all__ = ["CONTRACT", "TEMPLATE"]

TEMPLATE = Reduction(
    op_package=__file__,
    formula="output = the smallest i with x_i = min x, along dim; NaN is below all numbers",
    source="torch.argmin",
    function=torch.argmin,
    aten="argmin",
    flop=1.0,
    nanoseconds=0.4,
    dtype=torch.int64,
    smallest=True,
)
CONTRACT = TEMPLATE.contract
