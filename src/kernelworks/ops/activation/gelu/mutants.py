"""Known-wrong versions of gelu, beside those that every pointwise op has."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _other_form(x: Tensor, approximate: str) -> Any:
    return F.gelu(x, approximate="none" if approximate == "tanh" else "tanh")


def _quick(x: Tensor, approximate: str) -> Any:
    return (x.float() * torch.sigmoid(1.702 * x.float())).to(x.dtype)


def _cancelling(x: Tensor, approximate: str) -> Any:
    v = x.float()
    inner = (
        torch.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v**3))
        if approximate == "tanh"
        else torch.erf(v / math.sqrt(2.0))
    )
    return (0.5 * v * (1.0 + inner)).to(x.dtype)


def _missing_cube(x: Tensor, approximate: str) -> Any:
    v = x.double()
    inner = torch.tanh(math.sqrt(2.0 / math.pi) * v) if approximate == "tanh" else torch.erf(v)
    return (0.5 * v * (1.0 + inner)).to(x.dtype)


MUTANTS = (
    Mutant("other form", _other_form, "the two forms are taken for one another"),
    Mutant("sigmoid form", _quick, "x sigmoid(1.702 x) instead"),
    Mutant("cancelling tail", _cancelling, "1 + tanh or 1 + erf loses the negative tail in float32"),
    Mutant("missing constant", _missing_cube, "the cubic term, or the division by sqrt 2, is left out"),
)
