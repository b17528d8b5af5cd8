"""What argmax promises."""

from __future__ import annotations

import torch

from kernelworks.templates.reduction import Reduction

__all__ = ["CONTRACT", "TEMPLATE"]

TEMPLATE = Reduction(
    op_package=__file__,
    formula="output = the smallest i with x_i = max x, along dim; NaN is above all numbers",
    source="torch.argmax",
    function=torch.argmax,
    aten="argmax",
    flop=1.0,
    nanoseconds=0.4,
    dtype=torch.int64,
)
CONTRACT = TEMPLATE.contract
