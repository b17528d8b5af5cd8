"""What argmax promises."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelworks.forms.reduction import Reduction

__all__ = ["CONTRACT", "FORM"]

FORM = Reduction(
    room=__file__,
    formula="output = the smallest i with x_i = max x, along dim; NaN is above all numbers",
    source="torch.argmax",
    function=torch.argmax,
    aten="argmax",
    flop=1.0,
    nanoseconds=0.4,
    dtype=torch.int64,
)
EMPTY = ("a line without elements", lambda: {"x": torch.ones(3, 0)}, ValueError, "dim must have elements to reduce")
CONTRACT = replace(FORM.contract, errors=(*FORM.contract.errors, EMPTY))
