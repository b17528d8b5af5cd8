"""What sgd_ promises. A step has no gradient: the op changes its arguments, and nothing flows back through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.arguments import Flag
from kernelworks.contract.lists import Tensors
from kernelworks.contract.numbers import Real, is_middle
from kernelworks.templates.step import Draw, Step

__all__ = ["CONTRACT", "NUMBERS", "TEMPLATE", "sgd_step"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
USUAL = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.05, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip
NUMBERS = ("lr", "momentum", "dampening", "weight_decay")


def sgd_step(
    p: Tensor, g: Tensor, b: Tensor | None = None, *, lr: float, momentum: float, dampening: float,
    weight_decay: float, nesterov: bool, maximize: bool, is_first_step: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Parameter and momentum after one step: the definition."""
    d = -g if maximize else g
    if weight_decay:
        d = d + weight_decay * p
    if b is None:
        return (p - lr * d,)
    b = d if is_first_step else momentum * b + (1.0 - dampening) * d
    return p - lr * (d + momentum * b if nesterov else b), b


def _error(tensors: Mapping[str, Tensor], after: tuple[Tensor, ...], numbers: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Each quantity with the magnitude of its terms: every rounding is relative to these."""
    lr, momentum, take = numbers["lr"], numbers["momentum"], abs(1.0 - numbers["dampening"])
    decayed = numbers["weight_decay"] * tensors["params"].abs()
    d = tensors["grads"].abs() + decayed
    error_d = U32 * (d + 2.0 * decayed) + 2.0 * SMALLEST
    update, error_update = d, error_d
    errors = []
    if "momentum_buffers" in tensors:
        kept = momentum * tensors["momentum_buffers"].abs()
        b, error_b = kept + take * d, take * error_d + U32 * (3.0 * kept + 3.0 * take * d) + 2.0 * SMALLEST
        if numbers["is_first_step"]:
            b, error_b = d, error_d
        errors.append(error_b)
        update, error_update = b, error_b
        if numbers["nesterov"]:
            update = d + momentum * b
            error_update = error_d + momentum * error_b + U32 * (update + 2.0 * momentum * b) + SMALLEST
    error_p = lr * (error_update + 2.0 * U32 * update) + U32 * after[0].abs() + 2.0 * SMALLEST
    return error_p, *errors


TEMPLATE = Step(
    op_package=__file__,
    called="sgd_",
    formula="d = g + wd p, b <- m b + (1 - dampening) d, p <- p - lr b (nesterov: p - lr (d + m b); m = 0: p - lr d)",
    source="Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning, "
    "2013; torch.optim.SGD",
    arguments={
        "params": Tensors(written="a"),
        "grads": Tensors("params"),
        "momentum_buffers": Tensors("params", written="b", state=True, unless="momentum"),
        "lr": Real(0.1, least=0.0),
        "momentum": Real(0.9, least=0.0),
        "dampening": Real(0.0),
        "weight_decay": Real(0.01, least=0.0),
        "nesterov": Flag(),
        "maximize": Flag(),
        "is_first_step": Flag(),
    },
    step=sgd_step,
    error=_error,
    draws={"params": Draw(), "grads": Draw(kind=True), "momentum_buffers": Draw(scale=0.5)},
    usual=USUAL,
    tries={
        "no momentum": {"momentum": 0.0},
        "no momentum, no decay": {"momentum": 0.0, "weight_decay": 0.0},
        "no momentum, nesterov, maximize": {"momentum": 0.0, "nesterov": True, "maximize": True},
        "no decay": {"weight_decay": 0.0},
        "nesterov": {"nesterov": True},
        "dampened": {"dampening": 0.6},
        "dampened, nesterov": {"dampening": 0.6, "nesterov": True, "maximize": True},
        "all dampened": {"dampening": 1.0},
        "maximize": {"maximize": True},
        "first step, dampened": {"fresh": True, "dampening": 0.6},
        "first step, nesterov": {"fresh": True, "nesterov": True},
        "decay below 2^-8": {"weight_decay": 0.003, "state_dtype": torch.float32},
        "no rate": {"lr": 0.0},
        "small numbers": {"lr": 2.0**-110, "momentum": 2.0**-120, "weight_decay": 2.0**14},
        "momentum above 1": {"momentum": 1.5, "lr": 2.0},
    },
    resets={"is_first_step": True},
    fresh=math.nan,  # what a first step finds there is not read
    work=(8.0, 0.0),
    free={
        **dict.fromkeys(("lr", "weight_decay"), lambda v: v.__class__ is float and is_middle(v) and v >= 0.0),
        "momentum": lambda v: v.__class__ is float and is_middle(v) and v > 0.0,  # of 0 there are no buffers
        "dampening": lambda v: v.__class__ is float and is_middle(v),
    },
)

CONTRACT = TEMPLATE.contract
