"""The table of optimizers: each op is an entry. ``make docs`` writes of it what lies beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from kernelworks.contract.arguments import Argument, Flag
from kernelworks.contract.numbers import Ordinal, Real
from kernelworks.templates.optimizers.step_entry import Optimizer
from kernelworks.templates.optimizers.step_table import OptimizerTable
from kernelworks.templates.step import Draw

__all__ = ["TABLE"]

Tensors = tuple[Tensor, ...]
SQUARE = Draw(scale=0.1, then=torch.square)
DECAY: dict[str, Argument] = {"weight_decay": Real(0.0, least=0.0), "maximize": Flag()}
SIGNED_GRADIENT = "sign * g + decay * p"
SIGN_AND_DECAY = {"sign": "1 - 2 * maximize", "decay": "weight_decay"}


def _counted(tensors: Sequence[Any], step: int) -> list[Tensor]:
    """What torch's steps count, one for each parameter, before this step."""
    return [torch.tensor(float(step - 1)) for _ in tensors]


IGNORED_ARGUMENTS: dict[str, tuple[Mapping[str, Callable[[Mapping[str, Any]], Any]], str]] = {
    "missing decay": ({"weight_decay": lambda n: 0.0}, "weight_decay is not applied"),
    "maximize ignored": ({"maximize": lambda n: False}, "the sign of the gradient"),
}
FLIPPED_DECAY: dict[str, tuple[Mapping[str, str], str]] = {
    "decay flipped": ({"d": "sign * (g + decay * p)"}, "maximize turns the decay's sign too")
}
USUAL_TRIES: dict[str, Mapping[str, Any]] = {
    "no decay": {"weight_decay": 0.0},
    "maximize": {"maximize": True},
    "strong decay": {"weight_decay": 0.5},
}


# ---------------------------------------------------------------- adam_


def _adam(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, *, step: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, maximize: bool,
) -> Tensors:  # fmt: skip
    d = (-g if maximize else g) + weight_decay * p
    m = beta1 * m + (1.0 - beta1) * d
    v = beta2 * v + (1.0 - beta2) * d * d
    return p - lr / (1.0 - beta1**step) * m / ((v / (1.0 - beta2**step)).sqrt() + eps), m, v


def _adam_by_torch(
    params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, *, step: int, foreach: bool | None, **numbers: Any
) -> None:
    adam(
        params, grads, exp_avgs, exp_avg_sqs, [], _counted(params, step), foreach=foreach, fused=None, amsgrad=False,
        **numbers,
    )  # fmt: skip


ADAM = Optimizer(
    name="adam_",
    formula="d = g + wd p, m <- b1 m + (1-b1) d, v <- b2 v + (1-b2) d^2, "
    "p <- p - lr/(1-b1^t) m / (sqrt(v/(1-b2^t)) + eps)",
    source="Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015 (arXiv:1412.6980); torch.optim.Adam",
    states={"m": "exp_avgs", "v": "exp_avg_sqs"},
    numbers={
        "step": Ordinal(), "lr": Real(1e-3, least=0.0), "beta1": Real(0.9, least=0.0, below=1.0),
        "beta2": Real(0.999, least=0.0, below=1.0), "eps": Real(1e-8, least=0.0), **DECAY,
    },
    # Root and eps both times sqrt(1 - b2^t), which leaves one number less.
    constants=SIGN_AND_DECAY | {
        "keep": "beta1", "take": "1 - beta1", "keep2": "beta2", "take2": "1 - beta2",
        "rate": "lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)", "floor": "eps * (1 - beta2**step) ** 0.5",
    },
    steps={
        "d": SIGNED_GRADIENT, "m": "keep * m + take * d", "v": "keep2 * v + take2 * (d * d)",
        "p": "p - rate * m / (sqrt(v) + floor)",
    },
    definition=_adam,
    torch=_adam_by_torch,
    draws={"exp_avgs": Draw(scale=0.1), "exp_avg_sqs": SQUARE},
    usual={"step": 3, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "maximize": False},
    tries=USUAL_TRIES | {
        "late step": {"step": 100_000}, "large eps": {"eps": 0.5}, "other betas": {"beta1": 0.5, "beta2": 0.9},
        "no memory": {"beta1": 0.0, "beta2": 0.0},
    },
    resets={"step": 1},
    many={"eps": 1e-3},
    mutants=FLIPPED_DECAY | {
        "decoupled": ({"d": "sign * g", "p": "p - rate * m / (sqrt(v) + floor) - decay * rate * p"}, "AdamW's decay"),
        "eps inside the root": ({"p": "p - rate * m / sqrt(v + floor)"}, "eps added to v"),
        "no average": ({"p": "p - rate * d / (sqrt(v) + floor)"}, "the gradient alone"),
    },
    wrong_numbers=IGNORED_ARGUMENTS | {
        "no bias correction": ({"step": lambda n: 10**9}, "the first steps come out too small"),
        "one step behind": ({"step": lambda n: n["step"] + 1}, "the correction of the next step"),
        "betas swapped": ({"beta1": lambda n: n["beta2"], "beta2": lambda n: n["beta1"]}, "beta1 for beta2"),
    },
)  # fmt: skip


# ---------------------------------------------------------------- rmsprop_


def _rmsprop(
    p: Tensor, g: Tensor, v: Tensor, *, lr: float, alpha: float, eps: float, weight_decay: float, maximize: bool
) -> Tensors:
    d = (-g if maximize else g) + weight_decay * p
    v = alpha * v + (1.0 - alpha) * d * d
    return p - lr * d / (v.sqrt() + eps), v


def _rmsprop_by_torch(params: Any, grads: Any, square_avgs: Any, *, foreach: bool | None, **numbers: Any) -> None:
    steps = [torch.zeros(()) for _ in params]
    rmsprop(params, grads, square_avgs, [], [], steps, foreach=foreach, momentum=0.0, centered=False, **numbers)


RMSPROP = Optimizer(
    name="rmsprop_",
    formula="d = g + wd p, v <- a v + (1-a) d^2, p <- p - lr d / (sqrt(v) + eps)",
    source="Tieleman and Hinton, Lecture 6.5 - rmsprop, 2012; torch.optim.RMSprop",
    states={"v": "square_avgs"},
    numbers={
        "lr": Real(1e-2, least=0.0), "alpha": Real(0.99, least=0.0, below=1.0), "eps": Real(1e-8, least=0.0), **DECAY,
    },
    constants=SIGN_AND_DECAY | {"keep": "alpha", "take": "1 - alpha", "rate": "lr", "eps": "eps"},
    steps={"d": SIGNED_GRADIENT, "v": "keep * v + take * (d * d)", "p": "p - rate * d / (sqrt(v) + eps)"},
    definition=_rmsprop,
    torch=_rmsprop_by_torch,
    draws={"square_avgs": SQUARE},
    usual={"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.01, "maximize": False},
    tries=USUAL_TRIES | {"large eps": {"eps": 0.5}, "no memory": {"alpha": 0.0}, "no rate": {"lr": 0.0}},
    many={"eps": 1e-3},
    mutants=FLIPPED_DECAY | {"eps inside the root": ({"p": "p - rate * d / sqrt(v + eps)"}, "eps added to v")},
    wrong_numbers=IGNORED_ARGUMENTS,
)  # fmt: skip


# ---------------------------------------------------------------- adagrad_


def _adagrad(
    p: Tensor, g: Tensor, s: Tensor, *, step: int, lr: float, lr_decay: float, eps: float, weight_decay: float,
    maximize: bool,
) -> Tensors:  # fmt: skip
    d = (-g if maximize else g) + weight_decay * p
    s = s + d * d
    return p - lr / (1.0 + (step - 1) * lr_decay) * d / (s.sqrt() + eps), s


def _adagrad_by_torch(
    params: Any, grads: Any, state_sums: Any, *, step: int, foreach: bool | None, **numbers: Any
) -> None:
    adagrad(params, grads, state_sums, _counted(params, step), foreach=foreach, **numbers)


ADAGRAD = Optimizer(
    name="adagrad_",
    formula="d = g + wd p, s <- s + d^2, p <- p - lr / (1 + (t-1) lr_decay) d / (sqrt(s) + eps)",
    source="Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12, 2011; torch.optim.Adagrad",
    states={"s": "state_sums"},
    numbers={
        "step": Ordinal(), "lr": Real(1e-2, least=0.0), "lr_decay": Real(0.0, least=0.0),
        "eps": Real(1e-10, least=0.0), **DECAY,
    },
    constants=SIGN_AND_DECAY | {"rate": "lr / (1 + (step - 1) * lr_decay)", "eps": "eps"},
    steps={"d": SIGNED_GRADIENT, "s": "s + d * d", "p": "p - rate * d / (sqrt(s) + eps)"},
    definition=_adagrad,
    torch=_adagrad_by_torch,
    draws={"state_sums": SQUARE},
    usual={"step": 3, "lr": 0.01, "lr_decay": 0.1, "eps": 1e-10, "weight_decay": 0.01, "maximize": False},
    tries=USUAL_TRIES | {"late step": {"step": 100_000}, "large eps": {"eps": 0.5}, "steady": {"lr_decay": 0.0}},
    resets={"step": 1},
    many={"eps": 1e-3},
    mutants=FLIPPED_DECAY | {
        "eps inside the root": ({"p": "p - rate * d / sqrt(s + eps * eps)"}, "eps added to s"),
        "sum of before": ({"p": "p - rate * d / (sqrt(s - d * d) + eps)"}, "the sum before this step"),
    },
    wrong_numbers=IGNORED_ARGUMENTS | {
        "one step behind": ({"step": lambda n: n["step"] + 1}, "the rate of the next step"),
    },
)  # fmt: skip


# ---------------------------------------------------------------- adadelta_


def _adadelta(
    p: Tensor, g: Tensor, v: Tensor, u: Tensor, *, lr: float, rho: float, eps: float, weight_decay: float,
    maximize: bool,
) -> Tensors:  # fmt: skip
    d = (-g if maximize else g) + weight_decay * p
    v = rho * v + (1.0 - rho) * d * d
    delta = (u + eps).sqrt() / (v + eps).sqrt() * d
    return p - lr * delta, v, rho * u + (1.0 - rho) * delta * delta


def _adadelta_by_torch(
    params: Any, grads: Any, square_avgs: Any, acc_deltas: Any, *, foreach: bool | None, **numbers: Any
) -> None:
    steps = [torch.zeros(()) for _ in params]
    adadelta(params, grads, square_avgs, acc_deltas, steps, foreach=foreach, **numbers)


ADADELTA = Optimizer(
    name="adadelta_",
    formula="d = g + wd p, v <- r v + (1-r) d^2, e = sqrt(u + eps) / sqrt(v + eps) d, p <- p - lr e, "
    "u <- r u + (1-r) e^2",
    source="Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012 (arXiv:1212.5701); torch.optim.Adadelta",
    states={"v": "square_avgs", "u": "acc_deltas"},
    numbers={
        "lr": Real(1.0, least=0.0), "rho": Real(0.9, least=0.0, below=1.0), "eps": Real(1e-6, least=0.0), **DECAY,
    },
    constants=SIGN_AND_DECAY | {"keep": "rho", "take": "1 - rho", "rate": "lr", "eps": "eps"},
    steps={
        "d": SIGNED_GRADIENT, "v": "keep * v + take * (d * d)", "e": "sqrt(u + eps) / sqrt(v + eps) * d",
        "p": "p - rate * e", "u": "keep * u + take * (e * e)",
    },
    definition=_adadelta,
    torch=_adadelta_by_torch,
    draws={"square_avgs": SQUARE, "acc_deltas": SQUARE},
    usual={"lr": 0.5, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.01, "maximize": False},
    tries=USUAL_TRIES | {"large eps": {"eps": 0.5}, "no memory": {"rho": 0.0}},
    many={"eps": 1e-3},
    mutants=FLIPPED_DECAY | {
        "new steps in the rate": ({"e": "sqrt(keep * u + eps) / sqrt(v + eps) * d"}, "the sum of steps is kept first"),
        "rate in the sum": ({"u": "keep * u + take * (rate * e) * (rate * e)"}, "the step times lr is summed"),
    },
    wrong_numbers=IGNORED_ARGUMENTS,
)  # fmt: skip


# ---------------------------------------------------------------- lion_


def _lion(
    p: Tensor, g: Tensor, m: Tensor, *, lr: float, beta1: float, beta2: float, weight_decay: float, maximize: bool
) -> Tensors:
    d = -g if maximize else g
    return p * (1.0 - lr * weight_decay) - lr * (beta1 * m + (1.0 - beta1) * d).sign(), beta2 * m + (1.0 - beta2) * d


LION = Optimizer(
    name="lion_",
    formula="p <- p (1 - lr wd) - lr sign(b1 m + (1-b1) g), m <- b2 m + (1-b2) g",
    source="Chen et al., Symbolic Discovery of Optimization Algorithms, 2023 (arXiv:2302.06675)",
    states={"m": "exp_avgs"},
    numbers={
        "lr": Real(1e-4, least=0.0), "beta1": Real(0.9, least=0.0, below=1.0),
        "beta2": Real(0.99, least=0.0, below=1.0), **DECAY,
    },
    constants={
        "sign": "1 - 2 * maximize", "keep": "beta1", "take": "1 - beta1", "keep2": "beta2", "take2": "1 - beta2",
        "rate": "lr", "kept": "1 - lr * weight_decay",
    },
    steps={
        "d": "sign * g", "c": "keep * m + take * d", "way": "where(c > 0.0, 1.0, where(c < 0.0, -1.0, 0.0))",
        "m": "keep2 * m + take2 * d", "p": "kept * p - rate * way",
    },
    definition=_lion,
    torch=None,
    draws={"exp_avgs": Draw(scale=0.5)},
    usual={"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "maximize": False},
    tries=USUAL_TRIES | {"no memory": {"beta1": 0.0, "beta2": 0.0}, "no rate": {"lr": 0.0}},
    mutants={
        "momentum's sign": ({"way": "where(m > 0.0, 1.0, -1.0)"}, "the sign of m alone"),
        "not the sign": ({"way": "c"}, "the average itself"),
        "decay coupled": ({"d": "sign * g + (1.0 - kept) * p", "p": "p - rate * way"}, "L2 instead of decoupled decay"),
        "zeros move": ({"way": "where(c >= 0.0, 1.0, where(c < 0.0, -1.0, 0.0))"}, "the sign of 0 is taken for 1"),
    },
    wrong_numbers=IGNORED_ARGUMENTS | {
        "betas swapped": ({"beta1": lambda n: n["beta2"], "beta2": lambda n: n["beta1"]}, "beta1 for beta2"),
    },
)  # fmt: skip

# ---------------------------------------------------------------- muon_momentum_


def _muon_momentum(p: Tensor, g: Tensor, m: Tensor, *, momentum: float, nesterov: bool) -> Tensors:
    """As torch has it, also of infinities. p is written and not read."""
    m = m.lerp(g, 1.0 - momentum)
    return g.lerp(m, momentum) if nesterov else m, m


def _muon_momentum_by_torch(
    params: Any, grads: Any, momentum_buffers: Any, *, momentum: float, nesterov: bool, foreach: bool | None
) -> None:
    """What torch.optim.Muon does before it makes the update orthogonal."""
    for p, g, m in zip(params, grads, momentum_buffers, strict=True):
        m.lerp_(g, 1.0 - momentum)
        p.copy_(g.lerp(m, momentum) if nesterov else m)


MUON_MOMENTUM = Optimizer(
    name="muon_momentum_",
    formula="m <- mu m + (1-mu) g, p <- (1-mu) g + mu m where nesterov and m else: the update that is made orthogonal",
    source="Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; torch.optim.Muon",
    states={"m": "momentum_buffers"},
    numbers={"momentum": Real(0.95, least=0.0), "nesterov": Flag()},
    constants={"keep": "momentum", "take": "1 - momentum", "ahead": "nesterov"},
    # From the nearer end, as torch: so an infinity or NaN gives what it gives there.
    steps={
        "d": "g - m", "m": "where(take * 1.0 < 0.5, m + take * d, g - keep * d)", "e": "m - g",
        "n": "where(keep * 1.0 < 0.5, g + keep * e, m - take * e)", "p": "where(ahead * 1.0 > 0.5, n, m)",
    },
    definition=_muon_momentum,
    torch=_muon_momentum_by_torch,
    draws={"momentum_buffers": Draw(scale=0.5)},
    usual={"momentum": 0.95, "nesterov": True},
    tries={
        "plain": {"nesterov": False}, "no memory": {"momentum": 0.0}, "half": {"momentum": 0.5},
        "short memory": {"momentum": 0.25}, "all memory": {"momentum": 1.0},
        "plain and short": {"momentum": 0.25, "nesterov": False},
    },
    mutants={
        "not ahead": ({"p": "m"}, "nesterov is not looked at"),
        "the gradient undamped": ({"p": "where(ahead * 1.0 > 0.5, g + keep * m, m)"}, "SGD's way to look ahead"),
        "a sum": ({"m": "keep * m + g"}, "the gradient is added whole"),
        "the average of before": ({"p": "where(ahead * 1.0 > 0.5, take * g + keep * (m - take * d), m)"},
                                  "the momentum before this step"),
        "added to p": ({"p": "p + where(ahead * 1.0 > 0.5, n, m)"}, "what stood in p is read"),
    },
    wrong_numbers={
        "momentum swapped": ({"momentum": lambda n: 1.0 - n["momentum"]}, "the weights of m and g are swapped"),
        "always ahead": ({"nesterov": lambda n: True}, "nesterov without being asked"),
    },
)  # fmt: skip

TABLE = OptimizerTable.of(__file__, (ADADELTA, ADAGRAD, ADAM, LION, MUON_MOMENTUM, RMSPROP))
