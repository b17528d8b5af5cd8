"""What losses of elements promise: the table of them, an entry each. Nothing else is written by hand."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.contract.numbers import Real
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.templates.reduction_stages import torch_signatures as signatures
from kernelworks.templates.reduction_stages.loss import LossEntry, LossVariant
from kernelworks.templates.reduction_stages.loss_table import LossTable

__all__ = ["TABLE"]

NUMBERS = {"none": 0, "mean": 1, "sum": 2}  # as torch's operators have them
PAIR = ("x", "target")
SIGN = "where({d} > 0.0, 1.0, where({d} < 0.0, -1.0, 0.0 * ({d})))"
SOFT = "(log1p(exp(-abs(x))) + where(x < 0.0, -x, 0.0))"  # log(1 + e^-x), of which NaN comes through
SHARE = "(1.0 + (pos_weight - 1.0) * target)"


def _opposite(gradient: str) -> tuple[str, str]:
    """Of a loss of the difference: target's gradient is x's with the other sign."""
    return gradient, f"-({gradient})"


def _difference(power: int, bounded: bool = False) -> dict[str, Any]:
    """Magnitudes of a loss of |x - target|: what the difference and its square are made of."""

    def size(call: dict[str, Any]) -> Tensor:
        distance: Tensor = (call["x"] - call["target"]).abs()
        return distance

    def magnitudes(**call: Any) -> tuple[Tensor, float]:
        scale = call.get("delta", 1.0) / min(call.get("beta", 1.0) or 1.0, 1.0)
        return (size(call) ** power if power == 2 else size(call) * (1.0 + scale)) * 2.0, 0.0

    def slopes(**call: Any) -> Any:
        slope = size(call) * 2.0 if power == 2 else torch.full_like(size(call), 1.0 + call.get("delta", 1.0))
        return (slope, 0.0), (slope, 0.0)

    return {"magnitudes": magnitudes, "slopes": slopes}


def _mutant(function: Any) -> Any:
    """A known-wrong loss of the difference, in float64, of which the reduction is taken as asked."""

    def run(x: Tensor, target: Tensor, reduction: str, *numbers: float) -> Tensor:
        each = function((x.double() - target.double()), *numbers)
        made = each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()
        result: Tensor = made.to(x.dtype)
        return result

    return run


# ---------------------------------------------------------------- divergences of probabilities


def _probabilities(generator: Generator, dtype: torch.dtype, x: Tensor) -> Tensor:
    return (torch.rand(x.shape, generator=generator) * 0.98 + 0.01).to(dtype)


def _divergence_magnitudes(**call: Any) -> Any:
    x, t = call["x"], call["target"]
    if call["log_target"]:
        size = t.exp() * (t.abs() + x.abs() + 1.0)
        return size, size
    known = torch.special.xlogy(t, t).abs()
    return known + (t * x).abs(), known


def _divergence_slopes(**call: Any) -> Any:
    x, t = call["x"], call["target"]
    if call["log_target"]:
        size = t.exp()
        return (size, size), (size * (t.abs() + x.abs() + 1.0), size * (t.abs() + x.abs() + 1.0))
    return (t.abs(), 0.0), (t.log().abs() + 1.0 + x.abs(), t.log().abs())


def _logit_parts(call: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, t, one = call["x"], call["target"], torch.ones((), dtype=torch.float64)
    weight = one if call["weight"] is None else call["weight"].double()
    positive = one if call["pos_weight"] is None else call["pos_weight"].double()
    soft = torch.log1p(torch.exp(-x.abs()))
    return x, t, weight.abs(), (positive - 1.0).abs() * t.abs() + 1.0, soft


def _logit_magnitudes(**call: Any) -> Any:
    x, t, weight, share, soft = _logit_parts(call)
    return weight * ((1.0 + t.abs()) * x.abs() + share * (soft + x.abs())), weight * share * soft


def _logit_slopes(**call: Any) -> Any:
    x, t, weight, share, soft = _logit_parts(call)
    chance = torch.sigmoid(x) if call["weight"] is None and call["pos_weight"] is None else torch.sigmoid(-x) * share
    ahead = (weight * (1.0 + t.abs() + chance), weight * chance)
    return ahead, (weight * (x.abs() + share * 4.0 * (soft + x.abs()) + 1.0), weight * (share + 4.0) * soft * 4.0)


def _divergence(
    x: Tensor, target: Tensor, reduction: str, log_target: bool, sign: float = 1.0, base: float = 1.0
) -> Tensor:
    each = F.kl_div(x.double(), target.double(), reduction="none", log_target=log_target) * sign / base
    if reduction == "batchmean":
        return (each.sum() / (x.shape[0] if x.dim() else 1)).to(x.dtype)
    return (each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()).to(x.dtype)


# ---------------------------------------------------------------- losses of a class of two


def _either(generator: Generator, dtype: torch.dtype, x: Tensor) -> Tensor:
    """1 or -1."""
    return (torch.randint(0, 2, x.shape, generator=generator) * 2 - 1).to(dtype)


def _hinge_magnitudes(**call: Any) -> tuple[Tensor, float]:
    return 2.0 * (call["x"].abs() + abs(call["margin"])), 0.0


def _unit_slopes(**call: Any) -> Any:
    """torch takes no gradient of a class."""
    return (torch.ones_like(call["x"]), 0.0), None


# ---------------------------------------------------------------- the table

ENTRIES = (
    LossEntry(
        name="mse_loss",
        function=F.mse_loss,
        call="function(x, target, reduction=reduction)",
        operator=lambda x, target, reduction: aten("mse_loss", x, target, NUMBERS[reduction]),
        formula="loss = (x - target)^2",
        source="torch.nn.functional.mse_loss",
        describe="The squared error of each element, their mean or their sum.",
        torchs=signatures.difference,
        variants={"": LossVariant(PAIR, "(x - target) * (x - target)", _opposite("2.0 * (x - target)"))},
        **_difference(2),
        mutants={
            "halved": (_mutant(lambda d: 0.5 * d * d), "half of it"),
            "absolute": (_mutant(lambda d: d.abs()), "not squared"),
            "root": (_mutant(lambda d: (d * d + 1e-12).sqrt()), "a root is taken"),
        },
    ),
    LossEntry(
        name="l1_loss",
        function=F.l1_loss,
        call="function(x, target, reduction=reduction)",
        operator=lambda x, target, reduction: aten("l1_loss", x, target, NUMBERS[reduction]),
        formula="loss = |x - target|",
        source="torch.nn.functional.l1_loss",
        describe="The absolute error of each element, their mean or their sum.",
        torchs=signatures.difference,
        variants={"": LossVariant(PAIR, "abs(x - target)", _opposite(SIGN.format(d="x - target")))},
        **_difference(1),
        flop=2.0,
        mutants={
            "squared": (_mutant(lambda d: d * d), "squared"),
            "signed": (_mutant(lambda d: d), "the sign is kept"),
            "halved": (_mutant(lambda d: 0.5 * d.abs()), "half of it"),
        },
    ),
    LossEntry(
        name="smooth_l1_loss",
        function=F.smooth_l1_loss,
        call="function(x, target, reduction=reduction, beta=beta)",
        operator=lambda x, target, reduction, beta: (
            aten("smooth_l1_loss", x, target, NUMBERS[reduction], beta)
            if beta
            else aten("l1_loss", x, target, NUMBERS[reduction])
        ),
        formula="loss = d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2",
        source="Girshick, Fast R-CNN, ICCV 2015 (arXiv:1504.08083)",
        describe="The absolute error of each element, squared near 0; their mean or their sum.",
        torchs=signatures.smooth,
        variants={
            "": LossVariant(
                PAIR,
                "where(abs(x - target) < beta, 0.5 * (x - target) * (x - target) / beta, abs(x - target) - 0.5 * beta)",
                _opposite(
                    "where(x == target, 0.0, where(x - target <= -beta, -1.0, "
                    "where(x - target >= beta, 1.0, (x - target) / beta)))"
                ),
            )
        },
        numbers={"beta": Real(1.0, least=0.0)},
        presets={"beta": 1.0},
        tries=({"beta": 0.0}, {"beta": 0.3}, {"beta": 5.0}),
        **_difference(1),
        flop=6.0,
        mutants={
            "l1": (_mutant(lambda d, beta: d.abs()), "beta is not looked at"),
            "huber": (
                _mutant(lambda d, beta: F.huber_loss(d, d * 0, reduction="none", delta=beta or 1e-9)),
                "not divided",
            ),
            "beta 1": (_mutant(lambda d, beta: F.smooth_l1_loss(d, d * 0, reduction="none")), "beta is 1"),
        },
    ),
    LossEntry(
        name="huber_loss",
        function=F.huber_loss,
        call="function(x, target, reduction=reduction, delta=delta)",
        operator=lambda x, target, reduction, delta: aten("huber_loss", x, target, NUMBERS[reduction], delta),
        formula="loss = d^2 / 2 where d = |x - target| <= delta, else delta (d - delta / 2)",
        source="Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35(1), 1964",
        describe="The squared error of each element, absolute far from 0; their mean or their sum.",
        torchs=signatures.huber,
        variants={
            "": LossVariant(
                PAIR,
                "where(abs(x - target) <= delta, 0.5 * (x - target) * (x - target), "
                "delta * (abs(x - target) - 0.5 * delta))",
                _opposite("where(x - target <= -delta, -delta, where(x - target >= delta, delta, x - target))"),
            )
        },
        numbers={"delta": Real(1.0, above=0.0)},
        presets={"delta": 1.0},
        tries=({"delta": 0.3}, {"delta": 5.0}),
        **_difference(1),
        flop=6.0,
        mutants={
            "smooth_l1": (
                _mutant(lambda d, delta: F.smooth_l1_loss(d, d * 0, reduction="none", beta=delta)),
                "divided",
            ),
            "delta 1": (_mutant(lambda d, delta: F.huber_loss(d, d * 0, reduction="none")), "delta is 1"),
            "squared": (_mutant(lambda d, delta: 0.5 * d * d), "squared everywhere"),
        },
    ),
    LossEntry(
        name="kl_div",
        function=F.kl_div,
        call="function(x, target, reduction=reduction, log_target=log_target)",
        operator=lambda x, target, reduction, log_target: (
            aten("kl_div", x, target, NUMBERS[reduction], log_target=log_target) if reduction in NUMBERS else None
        ),
        formula="loss = target (log target - x); e^target (target - x) with log_target",
        source="Kullback and Leibler, On Information and Sufficiency, Annals of Mathematical Statistics 22(1), 1951",
        describe="The divergence of target from logarithms of probabilities, of each element, their mean or their sum.",
        torchs=signatures.divergence,
        variants={
            "": LossVariant(
                PAIR,
                "where(target == 0.0, 0.0, target * log(target)) - target * x",
                ("-target", "where(target == 0.0, NAN, log(target) + 1.0 - x)"),
            ),
            "log_target": LossVariant(
                PAIR, "exp(target) * (target - x)", ("-exp(target)", "exp(target) * (target - x + 1.0)")
            ),
        },
        flags=("log_target",),
        words=("none", "mean", "sum", "batchmean"),
        draw_target=_probabilities,
        tries=({"log_target": True},),
        magnitudes=_divergence_magnitudes,
        slopes=_divergence_slopes,
        functions=1.0,
        flop=4.0,
        mutants={
            "other sign": (lambda x, t, r, log: _divergence(x, t, r, log, sign=-1.0), "the divergence's opposite"),
            "cross entropy": (lambda x, t, r, log: _divergence(x, t, r, not log), "log_target is mistaken"),
            "bits": (lambda x, t, r, log: _divergence(x, t, r, log, base=0.6931471805599453), "in bits"),
        },
    ),
    LossEntry(
        name="binary_cross_entropy_with_logits",
        function=F.binary_cross_entropy_with_logits,
        call="function(x, target, weight, reduction=reduction, pos_weight=pos_weight)",
        operator=lambda x, target, weight, pos_weight, reduction: aten(
            "binary_cross_entropy_with_logits", x, target, weight, pos_weight, NUMBERS[reduction]
        ),
        formula="loss = weight ((1 - target) x + (1 + (pos_weight - 1) target) log(1 + e^-x))",
        source="torch.nn.functional.binary_cross_entropy_with_logits",
        describe="Cross-entropy of logits and probabilities, of each element, their mean or their sum.",
        torchs=signatures.logits,
        variants={
            "": LossVariant(
                PAIR,
                f"(1.0 - target) * x + {SOFT}",
                ("where(x < 0.0, exp(-abs(x)), 1.0) / (1.0 + exp(-abs(x))) - target", "-x"),
            ),
            "weighted": LossVariant(
                (*PAIR, "weight", "pos_weight"),
                f"weight * ((1.0 - target) * x + {SHARE} * {SOFT})",
                (
                    f"weight * (1.0 - target - {SHARE} * (where(x < 0.0, 1.0, exp(-abs(x))) / (1.0 + exp(-abs(x)))))",
                    f"weight * ((pos_weight - 1.0) * {SOFT} - x)",
                ),
            ),
        },
        weights={"weight": T("... C", like="x", optional=True), "pos_weight": T("C", like="x", optional=True)},
        dims="... C",
        draw_target=_probabilities,
        magnitudes=_logit_magnitudes,
        slopes=_logit_slopes,
        functions=2.0,
        flop=6.0,
        mutants={
            "of probabilities": (
                lambda x, t, w, p, r: F.binary_cross_entropy_with_logits(
                    x.double().sigmoid(), t.double(), w, reduction=r, pos_weight=p
                ).to(x.dtype),
                "x is a probability already",
            ),
            "unweighted": (
                lambda x, t, w, p, r: F.binary_cross_entropy_with_logits(x.double(), t.double(), reduction=r).to(
                    x.dtype
                ),
                "weights are not looked at",
            ),
            "weight alone": (
                lambda x, t, w, p, r: F.binary_cross_entropy_with_logits(x.double(), t.double(), w, reduction=r).to(
                    x.dtype
                ),
                "pos_weight is not looked at",
            ),
        },
    ),
    LossEntry(
        name="hinge_embedding_loss",
        function=F.hinge_embedding_loss,
        call="function(x, target, margin=margin, reduction=reduction)",
        operator=lambda x, target, reduction, margin: aten(
            "hinge_embedding_loss", x, target, margin, NUMBERS[reduction]
        ),
        formula="loss = x where target = 1, max(0, margin - x) where target = -1",
        source="Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006",
        describe="A distance of each pair that is alike, and how far each other one is within the margin.",
        torchs=signatures.hinge,
        variants={
            "": LossVariant(
                PAIR,
                "where(target == -1.0, 0.0, x) + where((target == 1.0) | (x > margin), 0.0, margin - x)",
                ("where(target == -1.0, 0.0, 1.0) - where((target != 1.0) & (x <= margin), 1.0, 0.0)", "0.0 * x"),
            )
        },
        numbers={"margin": Real(1.0)},
        presets={"margin": 1.0},
        draw_target=_either,
        tries=({"margin": 0.0}, {"margin": 2.5}, {"margin": -0.5}),
        magnitudes=_hinge_magnitudes,
        slopes=_unit_slopes,
        flop=4.0,
        mutants={
            "margin 1": (
                lambda x, t, r, m: F.hinge_embedding_loss(x.double(), t, 1.0, reduction=r).to(x.dtype),
                "margin is 1",
            ),
            "other class": (
                lambda x, t, r, m: F.hinge_embedding_loss(x.double(), -t, m, reduction=r).to(x.dtype),
                "the other class",
            ),
            "no clamp": (_mutant(lambda d, m: d), "negative distances"),
        },
    ),
)

TABLE = LossTable.of(__file__, ENTRIES)
