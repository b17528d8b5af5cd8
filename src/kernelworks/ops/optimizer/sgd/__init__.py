"""One step of stochastic gradient descent, in place, over lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from kernelworks.build.kernels import cpp_kernels, python_kernel, triton_kernel
from kernelworks.contract import Request
from kernelworks.contract.numbers import is_middle
from kernelworks.dispatch.signature import Array
from kernelworks.ops.optimizer.sgd.contract import CONTRACT, NUMBERS, TEMPLATE
from kernelworks.ops.optimizer.sgd.mutants import MUTANTS
from kernelworks.templates.step import launch_lists

__all__ = ["OP", "sgd_"]

TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "step.cpp")


def sgd_(
    params: Sequence[Array],
    grads: Sequence[Array],
    momentum_buffers: Sequence[Array],
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool = False,
    is_first_step: bool = False,
    kernel: str | None = None,
) -> None:
    """One step of stochastic gradient descent with momentum, in place.

    With g the gradient (its negative where ``maximize``)::

        d = g + weight_decay p
        b <- momentum b + (1 - dampening) d     (the first step: b <- d)
        p <- p - lr b                           (nesterov: p - lr (d + momentum b); without momentum: p - lr d)

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        momentum_buffers: b, one for each parameter, of its shape; of its dtype or float32. Empty where ``momentum`` is
            0.
        lr, momentum, dampening, weight_decay, nesterov: as in torch.optim.SGD; no defaults.
        maximize: climb instead of descend.
        is_first_step: the buffers hold nothing yet, and are not read.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and momentum_buffers are overwritten. There is no gradient through a step: the op runs outside
    autograd, and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: README.md; about ``u |p| + 2^-24 (|p| + 10 lr (|g| + |b|))``, u the unit roundoff of the dtype.
    Cost: 8 flop an element; reads three tensors once and writes two once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Sutskever, Martens, Dahl and Hinton 2013; torch.optim.SGD.
    """
    with torch.no_grad():
        OP.call(
            params, grads, momentum_buffers, lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step,
            None, kernel,
        )  # fmt: skip


def _forward(
    lib: Any, params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor], *numbers: Any,
    out: Any = None,
) -> None:  # fmt: skip
    launch_lists(lib.sgd_, [tensors for tensors in (params, momentum_buffers, grads) if tensors] or [()], numbers)


def _native(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor], lr: float, momentum: float,
    dampening: float, weight_decay: float, nesterov: bool, maximize: bool, is_first_step: bool,
) -> None:  # fmt: skip
    """What torch.optim.SGD runs unless it is told otherwise: one tensor after the other, or many at once on a GPU."""
    found: list[Tensor | None] = [None] * len(params) if is_first_step else list(momentum_buffers)
    sgd(
        list(params), list(grads), found, weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=dampening,
        nesterov=nesterov, maximize=maximize,
    )  # fmt: skip
    if is_first_step:
        for buffer, made in zip(momentum_buffers, found, strict=False):
            if made is not None:
                buffer.copy_(made)


def _torch(*args: Any, out: Any = None) -> None:
    _native(*args)


def _middle(request: Request) -> str | None:
    """A GPU takes every number in float32."""
    beyond = [name for name in NUMBERS if not is_middle(request.args.get(name, 0.0))]
    return f"takes {beyond[0]} of 0 or from 2^-100 to 2^15 in size" if beyond else None


OP = TEMPLATE.op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, passes=("forward",), in_place=True, guard=_middle),
        *cpp_kernels(Path(__file__).parent, forward=_forward, targets=TARGETS),
    ],
    torch_kernel=python_kernel("torch", _torch),
    composite=_native,
    native=_native,
    mutants=MUTANTS,
)
