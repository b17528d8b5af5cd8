"""Known-wrong versions of sgd_ that only it can have. The verification must reject every one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.ops.optimizer.sgd.contract import TEMPLATE, sgd_step

__all__ = ["MUTANTS"]

OFF = {"weight_decay": 0.0}


def _stale_momentum(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    """The parameter moves by the momentum of the step before."""
    after = sgd_step(p, g, b, **numbers)
    return after if b is None or numbers["is_first_step"] else (p - numbers["lr"] * b, after[1])


def _decoupled(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    """The weight decay after the momentum, as AdamW has it."""
    kept = p * (1.0 - numbers["lr"] * numbers["weight_decay"])
    return (sgd_step(kept, g, b, **(numbers | OFF))) if b is not None else sgd_step(p, g, **numbers)


def _lost_decay(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    """g + weight_decay p in bfloat16, where a decay below 2^-8 of g is lost."""
    decay = numbers["weight_decay"] * (-p if numbers["maximize"] else p)
    return sgd_step(p, (g + decay).bfloat16().double(), b, **(numbers | OFF))


def _rounded_momentum(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    after = sgd_step(p, g, b, **numbers)
    return after if b is None else (after[0], after[1].bfloat16().double())


def _first_read(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    return sgd_step(p, g, b, **(numbers | {"is_first_step": False}))


def _first_dampened(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    zeros = None if b is None else torch.zeros_like(b) if numbers["is_first_step"] else b
    return sgd_step(p, g, zeros, **(numbers | {"is_first_step": False}))


def _flipped_decay(p: Tensor, g: Tensor, b: Tensor | None = None, **numbers: Any) -> tuple[Tensor, ...]:
    if not numbers["maximize"]:
        return sgd_step(p, g, b, **numbers)
    return sgd_step(p, -(g + numbers["weight_decay"] * p), b, **(numbers | OFF | {"maximize": False}))


MUTANTS = (
    TEMPLATE.mutant("stale momentum", _stale_momentum, "the parameter moves by the momentum before this step"),
    TEMPLATE.mutant("decay after momentum", _decoupled, "decoupled decay instead of L2"),
    TEMPLATE.mutant("decay below 2^-8 lost", _lost_decay, "gradient and decay are added in bfloat16"),
    TEMPLATE.mutant("momentum rounded", _rounded_momentum, "float32 momentum goes through bfloat16"),
    TEMPLATE.mutant("first momentum read", _first_read, "what lies in the buffers before the first step"),
    TEMPLATE.mutant("first step dampened", _first_dampened, "the first momentum is the whole gradient"),
    TEMPLATE.mutant("decay flipped", _flipped_decay, "maximize turns the decay's sign too"),
    TEMPLATE.mutant_of_numbers("no dampening", "dampening is ignored", dampening=lambda n: 0.0),
    TEMPLATE.mutant_of_numbers("nesterov ignored", "plain momentum", nesterov=lambda n: False),
    TEMPLATE.mutant_of_numbers("missing decay", "weight_decay is not applied", weight_decay=lambda n: 0.0),
    TEMPLATE.mutant_of_numbers("maximize ignored", "the sign of the gradient", maximize=lambda n: False),
)
