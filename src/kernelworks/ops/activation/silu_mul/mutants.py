"""Known-wrong versions of silu_mul, beside those that every pointwise op has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _no_gate(gate: Tensor, up: Tensor) -> Any:
    return (torch.sigmoid(gate.double()) * up).to(gate.dtype)


def _silu_rounded(gate: Tensor, up: Tensor) -> Any:
    return (F.silu(gate.float()).bfloat16().float() * up.float()).to(gate.dtype)


def _gelu(gate: Tensor, up: Tensor) -> Any:
    return (F.gelu(gate.double()) * up).to(gate.dtype)


def _flushed(gate: Tensor, up: Tensor) -> Any:
    y = F.silu(gate.double()) * up
    return torch.where(gate < -30.0, torch.zeros_like(y), y).to(gate.dtype)


MUTANTS = (
    Mutant("sigmoid only", _no_gate, "the gate itself is not multiplied in"),
    Mutant("silu rounded", _silu_rounded, "silu is rounded to bfloat16 before the product"),
    Mutant("gelu", _gelu, "another activation"),
    Mutant("flushed tail", _flushed, "the negative tail is cut to 0"),
)
