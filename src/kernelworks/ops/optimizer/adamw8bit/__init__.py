"""One step of AdamW whose states are kept in 8 bits, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernelworks.build.kernels import cpp_kernels, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.numbers import MOST_FLOAT32
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.optimizer.adamw8bit.contract import ARGUMENTS, CONTRACT, MUTATES, reference
from kernelworks.ops.optimizer.adamw8bit.mutants import MUTANTS

__all__ = ["OP", "adamw8bit_", "numbers_of"]


def adamw8bit_(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_scale: Array,
    rms: Array,
    rms_scale: Array,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    kernel: str | None = None,
) -> None:
    """One step of AdamW with states of 8 bits, in place.

    With g the gradient (its negative where ``maximize``), m and r what the states hold, in blocks of 256 elements::

        m <- beta1 m + (1 - beta1) g            r <- sqrt(beta2 r^2 + (1 - beta2) g^2)
        p <- p - lr weight_decay p - lr / (1 - beta1^step) m / (r / sqrt(1 - beta2^step) + eps)
        scale = max |m| / 1.875, code = nearest(m / scale)      (r: max r / 1.9375)

    A code of m is a sign, four bits of exponent and three of mantissa; one of r, the root of AdamW's second average,
    four and four. The parameter moves by m and r as they are before they are rounded.

    Args:
        param: [N], p, float32, bfloat16 or float16, contiguous.
        grad: [N] of its dtype, contiguous.
        exp_avg: [N], uint8, contiguous, the codes of m; zeros at first.
        exp_avg_scale: [(N + 255) // 256], float32, their scales; zeros at first.
        rms, rms_scale: the same of r.
        step: which step this is, from 1.
        lr, beta1, beta2, eps, weight_decay: as in torch.optim.AdamW; no defaults.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: all but grad are overwritten. The op runs outside autograd. No tensor that is written may share memory
    with another. A block that holds what is no number afterwards has scales that are NaN and codes of 0; one below
    2^-100 the scale 0.

    Error bound: a code is one whose number is off by half the distance of codes and by 4 roundings of m (of r); p by
        ``u |p| + 2^-24 (2 |p_old| + |p| + 12 rate (|m| + |g|) / r)``, about: README.md.
    Cost: 40 flop an element; reads 2 bytes of states and the parameter and gradient once, writes all but the gradient.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Dettmers et al. 2022, arXiv:2110.02861; Loshchilov and Hutter 2019; the codes are kernelworks' own.
    """
    with torch.no_grad():
        OP.call(
            param, grad, exp_avg, exp_avg_scale, rms, rms_scale, step, lr, beta1, beta2, eps, weight_decay, maximize,
            None, kernel,
        )  # fmt: skip


def numbers_of(
    step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool
) -> tuple[float, ...]:
    """What kernels take: root and eps both times sqrt(1 - beta2^step), which leaves one number less."""
    correction = (1.0 - float(beta2) ** step) ** 0.5
    rate = lr * correction / (1.0 - float(beta1) ** step)
    sign = -1.0 if maximize else 1.0
    return (
        sign, float(beta1), 1.0 - beta1, float(beta2), 1.0 - beta2, rate, eps * correction, 1.0 - lr * weight_decay
    )  # fmt: skip


def _forward(lib: Any, *args: Any, out: Any = None) -> None:
    kernel, threads = choose_threads(lib.adamw8bit_, 2.0 * args[0].numel())
    kernel(*args[:6], threads, *numbers_of(*args[6:]))


def _composite(*args: Any, out: Any = None) -> None:
    """By the definition, whose float64 is as quick as anything here that torch has no function for."""
    made = reference(**dict(zip(ARGUMENTS, args, strict=True)))
    named = dict(zip(ARGUMENTS, args, strict=True))
    for name, value in zip(MUTATES, made, strict=True):
        named[name].copy_(value)


def _schema() -> str:
    schema = schema_of(ARGUMENTS)
    for letter, name in zip("abcde", MUTATES, strict=True):
        schema = schema.replace(f"Tensor {name},", f"Tensor({letter}!) {name},")
    return f"adamw8bit_({schema}, str? op_kernel=None) -> ()"


# Another step, or another rate, is no other plan.
FREE: Mapping[str, Callable[[Any], bool]] = {
    "step": lambda step: step.__class__ is int and 1 <= step < 2**63,
    **dict.fromkeys(("lr", "eps", "weight_decay"), lambda v: v.__class__ is float and 0.0 <= v <= MOST_FLOAT32),
    **dict.fromkeys(("beta1", "beta2"), lambda v: v.__class__ is float and 0.0 <= v < 1.0),
}
OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, passes=("forward",), in_place=True),
        *cpp_kernels(Path(__file__).parent, forward=_forward),
        python_kernel("torch", _composite),
        python_kernel("reference", _composite),
    ],
    op_package=__file__,
    forward=Pass(_schema(), lambda *args: None, free=FREE),
    composite=_composite,
    mutants=MUTANTS,
)
