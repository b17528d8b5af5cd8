"""What adamw_ promises. A step has no gradient: the op changes its arguments, and nothing flows back through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.arguments import Flag
from kernelworks.contract.lists import Tensors
from kernelworks.contract.numbers import MOST_FLOAT32, Ordinal, Real
from kernelworks.templates.step import Draw, Step

__all__ = ["CONTRACT", "TEMPLATE", "adamw_step"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
USUAL = {"step": 3, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "maximize": False}


def adamw_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, *, step: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, maximize: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Parameter and state after one step: the definition."""
    g = -g if maximize else g
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    root = torch.sqrt(v / (1.0 - beta2**step))
    return p * (1.0 - lr * weight_decay) - lr / (1.0 - beta1**step) * m / (root + eps), m, v


def _error(tensors: Mapping[str, Tensor], after: tuple[Tensor, ...], numbers: Mapping[str, Any]) -> tuple[Tensor, ...]:
    step, lr, beta1, beta2 = numbers["step"], numbers["lr"], numbers["beta1"], numbers["beta2"]
    new_p, new_m, new_v = after
    p, g, m = (tensors[name] for name in ("params", "grads", "exp_avgs"))
    terms_m = beta1 * m.abs() + (1.0 - beta1) * g.abs()
    error_m = 4.0 * U32 * terms_m + SMALLEST
    error_v = 5.0 * U32 * new_v + 3.0 * SMALLEST
    # The root of v: relative to itself where v is not tiny, else at most the root of the error.
    scale = 1.0 / math.sqrt(1.0 - beta2**step)
    root = torch.sqrt(new_v)
    error_root = torch.minimum(error_v.sqrt(), torch.where(root > 0.0, error_v / (2.0 * root), math.inf))
    below = root * scale + numbers["eps"]
    error_below = error_root * scale + 6.0 * U32 * below
    rate = lr / (1.0 - beta1**step)
    update = rate * new_m / below
    smallest_below = (below - error_below).clamp(min=0.0)
    error_update = (rate * error_m + SMALLEST + update.abs() * error_below) / smallest_below + 4.0 * U32 * update.abs()
    decayed = p * (1.0 - lr * numbers["weight_decay"])
    error_p = U32 * (3.0 * decayed.abs() + new_p.abs() + update.abs()) + error_update + SMALLEST
    return error_p, error_m, error_v


TEMPLATE = Step(
    op_package=__file__,
    called="adamw_",
    formula="m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2, p <- p (1-lr wd) - lr/(1-b1^t) m / (sqrt(v/(1-b2^t)) + eps)",
    source="Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019 (arXiv:1711.05101)",
    arguments={
        "params": Tensors(written="a"),
        "grads": Tensors("params"),
        "exp_avgs": Tensors("params", written="b", state=True),
        "exp_avg_sqs": Tensors("params", written="c", state=True, state_like="exp_avgs"),
        "step": Ordinal(),
        "lr": Real(1e-3, least=0.0),
        "beta1": Real(0.9, least=0.0, below=1.0),
        "beta2": Real(0.999, least=0.0, below=1.0),
        "eps": Real(1e-8, least=0.0),
        "weight_decay": Real(0.01, least=0.0),
        "maximize": Flag(),
    },
    step=adamw_step,
    error=_error,
    draws={
        "params": Draw(),
        "grads": Draw(kind=True),
        "exp_avgs": Draw(scale=0.1),
        "exp_avg_sqs": Draw(scale=0.1, then=torch.square),
    },
    usual=USUAL,
    tries={
        "late step": {"step": 100_000},
        "large eps": {"eps": 0.5},
        "strong decay": {"weight_decay": 0.5, "lr": 0.1},
        "no decay": {"weight_decay": 0.0},
        "maximize": {"maximize": True},
        "other betas": {"beta1": 0.5, "beta2": 0.9},
        "no memory": {"beta1": 0.0, "beta2": 0.0},
    },
    resets={"step": 1},
    many={"eps": 1e-3},
    work=(14.0, 2.0),
    free={
        "step": lambda step: step.__class__ is int and 1 <= step < 2**63,
        **dict.fromkeys(("lr", "eps", "weight_decay"), lambda v: v.__class__ is float and 0.0 <= v <= MOST_FLOAT32),
        **dict.fromkeys(("beta1", "beta2"), lambda v: v.__class__ is float and 0.0 <= v < 1.0),
    },
)

CONTRACT = TEMPLATE.contract
