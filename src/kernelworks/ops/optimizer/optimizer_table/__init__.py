"""Steps of optimizers, the ops of the table in ``contract.py``. Written by `make docs`: changes are lost."""

from collections.abc import Sequence

import torch

from kernelworks.dispatch.signature import Array
from kernelworks.ops.optimizer.optimizer_table.contract import TABLE

__all__ = [
    "ADADELTA_",
    "ADAGRAD_",
    "ADAM_",
    "LION_",
    "MUON_MOMENTUM_",
    "RMSPROP_",
    "adadelta_",
    "adagrad_",
    "adam_",
    "lion_",
    "muon_momentum_",
    "rmsprop_",
]


def adadelta_(
    params: Sequence[Array],
    grads: Sequence[Array],
    square_avgs: Sequence[Array],
    acc_deltas: Sequence[Array],
    *,
    lr: float,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    kernel: str | None = None,
) -> None:
    """One step, in place, over lists of tensors.

    With::

        d = g + wd p
        v <- r v + (1-r) d^2
        e = sqrt(u + eps) / sqrt(v + eps) d
        p <- p - lr e
        u <- r u + (1-r) e^2

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        square_avgs: v, one for each parameter, of its shape; of its dtype or float32.
        acc_deltas: u, one for each parameter, of its shape; of its dtype or float32.
        lr: a number of at least 0, finite in float32.
        rho: a number of at least 0 below 1, finite in float32.
        eps: a number of at least 0, finite in float32.
        weight_decay: a number of at least 0, finite in float32.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: 19 operations an element; reads 4 tensors once and writes 3 once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012 (arXiv:1212.5701); torch.optim.Adadelta.
    """
    with torch.no_grad():
        ADADELTA_.call(params, grads, square_avgs, acc_deltas, lr, rho, eps, weight_decay, maximize, None, kernel)


ADADELTA_ = TABLE.op("adadelta_")


def adagrad_(
    params: Sequence[Array],
    grads: Sequence[Array],
    state_sums: Sequence[Array],
    *,
    step: int,
    lr: float,
    lr_decay: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    kernel: str | None = None,
) -> None:
    """One step, in place, over lists of tensors.

    With::

        d = g + wd p
        s <- s + d^2
        p <- p - lr / (1 + (t-1) lr_decay) d / (sqrt(s) + eps)

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        state_sums: s, one for each parameter, of its shape; of its dtype or float32.
        step: an int of at least 1.
        lr: a number of at least 0, finite in float32.
        lr_decay: a number of at least 0, finite in float32.
        eps: a number of at least 0, finite in float32.
        weight_decay: a number of at least 0, finite in float32.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: 10 operations an element; reads 3 tensors once and writes 2 once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12, 2011; torch.optim.Adagrad.
    """
    with torch.no_grad():
        ADAGRAD_.call(params, grads, state_sums, step, lr, lr_decay, eps, weight_decay, maximize, None, kernel)


ADAGRAD_ = TABLE.op("adagrad_")


def adam_(
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
    """One step, in place, over lists of tensors.

    With::

        d = g + wd p
        m <- b1 m + (1-b1) d
        v <- b2 v + (1-b2) d^2
        p <- p - lr/(1-b1^t) m / (sqrt(v/(1-b2^t)) + eps)

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        exp_avgs: m, one for each parameter, of its shape; of its dtype or float32.
        exp_avg_sqs: v, one for each parameter, of its shape; of its dtype or float32.
        step: an int of at least 1.
        lr: a number of at least 0, finite in float32.
        beta1: a number of at least 0 below 1, finite in float32.
        beta2: a number of at least 0 below 1, finite in float32.
        eps: a number of at least 0, finite in float32.
        weight_decay: a number of at least 0, finite in float32.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: 15 operations an element; reads 4 tensors once and writes 3 once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015 (arXiv:1412.6980); torch.optim.Adam.
    """
    with torch.no_grad():
        ADAM_.call(
            params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, eps, weight_decay, maximize, None, kernel
        )


ADAM_ = TABLE.op("adam_")


def lion_(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool = False,
    kernel: str | None = None,
) -> None:
    """One step, in place, over lists of tensors.

    With::

        p <- p (1 - lr wd) - lr sign(b1 m + (1-b1) g)
        m <- b2 m + (1-b2) g

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        exp_avgs: m, one for each parameter, of its shape; of its dtype or float32.
        lr: a number of at least 0, finite in float32.
        beta1: a number of at least 0 below 1, finite in float32.
        beta2: a number of at least 0 below 1, finite in float32.
        weight_decay: a number of at least 0, finite in float32.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: 11 operations an element; reads 3 tensors once and writes 2 once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023 (arXiv:2302.06675).
    """
    with torch.no_grad():
        LION_.call(params, grads, exp_avgs, lr, beta1, beta2, weight_decay, maximize, None, kernel)


LION_ = TABLE.op("lion_")


def muon_momentum_(
    params: Sequence[Array],
    grads: Sequence[Array],
    momentum_buffers: Sequence[Array],
    *,
    momentum: float,
    nesterov: bool = False,
    kernel: str | None = None,
) -> None:
    """One step, in place, over lists of tensors.

    With::

        m <- mu m + (1-mu) g
        p <- (1-mu) g + mu m where nesterov and m else: the update that is made orthogonal

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        momentum_buffers: m, one for each parameter, of its shape; of its dtype or float32.
        momentum: a number of at least 0, finite in float32.
        nesterov: whether the update takes the gradient once more.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: 13 operations an element; reads 3 tensors once and writes 2 once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; torch.optim.Muon.
    """
    with torch.no_grad():
        MUON_MOMENTUM_.call(params, grads, momentum_buffers, momentum, nesterov, None, kernel)


MUON_MOMENTUM_ = TABLE.op("muon_momentum_")


def rmsprop_(
    params: Sequence[Array],
    grads: Sequence[Array],
    square_avgs: Sequence[Array],
    *,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    kernel: str | None = None,
) -> None:
    """One step, in place, over lists of tensors.

    With::

        d = g + wd p
        v <- a v + (1-a) d^2
        p <- p - lr d / (sqrt(v) + eps)

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
        square_avgs: v, one for each parameter, of its shape; of its dtype or float32.
        lr: a number of at least 0, finite in float32.
        alpha: a number of at least 0 below 1, finite in float32.
        eps: a number of at least 0, finite in float32.
        weight_decay: a number of at least 0, finite in float32.
        maximize: climb instead of descend.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: 12 operations an element; reads 3 tensors once and writes 2 once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: Tieleman and Hinton, Lecture 6.5 - rmsprop, 2012; torch.optim.RMSprop.
    """
    with torch.no_grad():
        RMSPROP_.call(params, grads, square_avgs, lr, alpha, eps, weight_decay, maximize, None, kernel)


RMSPROP_ = TABLE.op("rmsprop_")
