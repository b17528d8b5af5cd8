"""One step of AdamW, in place, over lists of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from kernelworks.build.kernels import cpp_kernels, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Request
from kernelworks.dispatch.signature import Array
from kernelworks.ops.optimizer.adamw.contract import CONTRACT, TEMPLATE, USUAL, adamw_step
from kernelworks.ops.optimizer.adamw.mutants import MUTANTS

__all__ = ["OP", "adamw_"]


def adamw_(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
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
    """One step of AdamW (decoupled weight decay), in place.

    With g the gradient (its negative where ``maximize``)::

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        p <- p (1 - lr weight_decay) - lr / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + eps)

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        exp_avgs: m, one for each parameter, of its shape; of its dtype or float32.
        exp_avg_sqs: v, like exp_avgs.
        step: which step this is, from 1.
        lr, beta1, beta2, eps, weight_decay: as in torch.optim.AdamW; no defaults.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params, exp_avgs and exp_avg_sqs are overwritten. There is no gradient through a step: the op runs
    outside autograd, and parameters that require grad are accepted.

    Error bound: README.md; about ``u |p| + 2^-24 (4 |p| + 16 |update|)``, u the unit roundoff of the dtype.
    Cost: 14 flop, a root and a division an element; reads four tensors once and writes three once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    with torch.no_grad():
        OP.call(
            params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, eps, weight_decay, maximize, None, kernel
        )  # fmt: skip


def _forward(
    lib: Any, params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor], step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
    maximize: bool, out: Any = None,
) -> None:  # fmt: skip
    correction1, correction2 = 1.0 - math.pow(beta1, step), 1.0 - math.pow(beta2, step)
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        kernel, nth = choose_threads(lib.adamw_, p.numel())
        kernel(p, g, m, v, lr, beta1, beta2, eps, weight_decay, correction1, correction2, maximize, nth)


def _torch(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool, out: Any = None,
) -> None:  # fmt: skip
    """What torch.optim.AdamW runs on the CPU unless it is told otherwise."""
    adamw(
        list(params), list(grads), list(exp_avgs), list(exp_avg_sqs), [],
        [torch.tensor(float(step - 1)) for _ in params], foreach=False, fused=False, amsgrad=False, beta1=beta1,
        beta2=beta2, lr=lr, weight_decay=weight_decay, eps=eps, maximize=maximize,
    )  # fmt: skip


def _native(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
) -> None:  # fmt: skip
    """What torch.optim.AdamW runs unless it is told otherwise: one tensor after the other, or many at once on a GPU."""
    if any(len({t.dtype for t in four}) > 1 for four in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        _composite(
            params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, eps, weight_decay, maximize
        )  # fmt: skip
        return
    adamw(
        list(params), list(grads), list(exp_avgs), list(exp_avg_sqs), [],
        [torch.tensor(float(step - 1)) for _ in params], amsgrad=False, beta1=beta1, beta2=beta2, lr=lr,
        weight_decay=weight_decay, eps=eps, maximize=maximize,
    )  # fmt: skip


def _composite(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    *scalars: Any,
) -> None:  # fmt: skip
    """torch's step, or its formula where torch's refuses (16-bit parameters with float32 state)."""
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        if p.dtype == g.dtype == m.dtype == v.dtype:
            _torch([p], [g], [m], [v], *scalars)
            continue
        numbers = dict(zip(USUAL, scalars, strict=True))
        for target, value in zip(
            (p, m, v), adamw_step(p.float(), g.float(), m.float(), v.float(), **numbers), strict=True
        ):
            target.copy_(value)


def _one_dtype(request: Request) -> str | None:
    """torch's AdamW cannot step 16-bit parameters with float32 state."""
    pairs = zip(request.args["grads"], request.args["exp_avgs"], strict=True)
    return "needs state of the gradients' dtype" if any(g.dtype != m.dtype for g, m in pairs) else None


OP = TEMPLATE.op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, passes=("forward",), in_place=True),
        *cpp_kernels(Path(__file__).parent, forward=_forward),
    ],
    torch_kernel=python_kernel("torch", _torch, guard=_one_dtype),
    composite=_composite,
    native=_native,
    mutants=MUTANTS,
)
