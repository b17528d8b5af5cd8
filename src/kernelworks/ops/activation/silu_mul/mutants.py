"""Known-wrong versions of silu_mul. The proof must reject every one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _swapped(gate: Tensor, up: Tensor) -> Any:
    return (F.silu(up.double()) * gate).to(gate.dtype)


def _no_gate(gate: Tensor, up: Tensor) -> Any:
    return (torch.sigmoid(gate.double()) * up).to(gate.dtype)


def _twice_rounded(gate: Tensor, up: Tensor) -> Any:
    return (F.silu(gate.float()).bfloat16().float() * up.float()).to(gate.dtype)


def _gelu(gate: Tensor, up: Tensor) -> Any:
    return (F.gelu(gate.double()) * up).to(gate.dtype)


def _flushed(gate: Tensor, up: Tensor) -> Any:
    y = F.silu(gate.double()) * up
    return torch.where(gate < -30.0, torch.zeros_like(y), y).to(gate.dtype)


def _stale_tail(gate: Tensor, up: Tensor) -> Any:
    flat = (F.silu(gate.double()) * up).to(gate.dtype).reshape(-1).clone()
    if flat.numel() % 16:
        flat[flat.numel() // 16 * 16 :] = 0.0
    return flat.reshape(gate.shape)


def _shifted(gate: Tensor, up: Tensor) -> Any:
    return (F.silu(gate.double()) * up.reshape(-1).roll(1).reshape(up.shape)).to(gate.dtype)


MUTANTS = (
    Mutant("swapped", _swapped, "gate and up are taken for one another"),
    Mutant("sigmoid only", _no_gate, "the gate itself is not multiplied in"),
    Mutant("rounded twice", _twice_rounded, "silu is rounded to bfloat16 before the product"),
    Mutant("gelu", _gelu, "another activation"),
    Mutant("flushed tail", _flushed, "the negative tail is cut to 0"),
    Mutant("stale tail", _stale_tail, "the vector tail is never written"),
    Mutant("up off by one", _shifted, "up is read one element aside"),
    Mutant("zeros", lambda gate, up: torch.zeros_like(gate), "nothing is written"),
)
