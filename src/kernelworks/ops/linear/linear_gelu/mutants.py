"""Known-wrong versions of linear_gelu beside those of its op template. The verification must reject every one."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from kernelworks.contract import Mutant
from kernelworks.ops.linear.linear_gelu.contract import TEMPLATE

__all__ = ["MUTANTS"]


def _bias_after(*args: Any) -> Any:
    x, weight, bias, approximate = args
    y = F.gelu(x.double() @ weight.double().T, approximate=approximate)
    return (y if bias is None else y + bias.double()).to(x.dtype)


def _plain(*args: Any) -> Any:
    x, weight, bias, _ = args
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double()).to(x.dtype)


MUTANTS = (
    Mutant("no gelu", _plain, "the sums go out as they are"),
    Mutant("bias after gelu", _bias_after, "the bias is added to gelu of the sums"),
    Mutant("the other form",
           TEMPLATE.replace_arguments(approximate=lambda a: {"tanh": "none", "none": "tanh"}[a["approximate"]]),
           "tanh for none and none for tanh"),
)  # fmt: skip
