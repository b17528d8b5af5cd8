"""Known-wrong versions of adamw_. The verification must reject every one. Each changes its arguments, as the op
does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.optimizer.adamw.contract import adamw_step

__all__ = ["MUTANTS"]

NAMES = ("step", "lr", "beta1", "beta2", "eps", "weight_decay", "maximize")
Step = Callable[[Tensor, Tensor, Tensor, Tensor, dict[str, Any]], tuple[Tensor, Tensor, Tensor]]


def _mutant(change: Step) -> Callable[..., None]:
    def run(
        params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], *scalars: Any
    ) -> None:
        named = dict(zip(NAMES, scalars, strict=True))
        for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
            after = change(p.double(), g.double(), m.double(), v.double(), named)
            for target, value in zip((p, m, v), after, strict=True):
                target.copy_(value)

    return run


def _other(**changed: Callable[[dict[str, Any]], Any]) -> Step:
    return lambda p, g, m, v, named: adamw_step(p, g, m, v, **(named | {n: f(named) for n, f in changed.items()}))


def _coupled(p: Tensor, g: Tensor, m: Tensor, v: Tensor, named: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    return adamw_step(p, g + named["weight_decay"] * p, m, v, **(named | {"weight_decay": 0.0}))


def _eps_inside(p: Tensor, g: Tensor, m: Tensor, v: Tensor, named: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    shifted = adamw_step(p, g, m, v + named["eps"] / named["beta2"] if named["beta2"] else v, **(named | {"eps": 0.0}))
    return shifted[0], *adamw_step(p, g, m, v, **named)[1:]


def _uncorrected(p: Tensor, g: Tensor, m: Tensor, v: Tensor, named: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    return adamw_step(p, g, m, v, **(named | {"step": 10**9}))


def _stale_state(p: Tensor, g: Tensor, m: Tensor, v: Tensor, named: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    return adamw_step(p, g, m, v, **named)[0], m, v


def _low_precision(p: Tensor, g: Tensor, m: Tensor, v: Tensor, named: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    after = adamw_step(p, g.bfloat16().double(), m.bfloat16().double(), v.bfloat16().double(), **named)
    return after[0], *adamw_step(p, g, m, v, **named)[1:]


def _stale_tail(p: Tensor, g: Tensor, m: Tensor, v: Tensor, named: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    after = adamw_step(p, g, m, v, **named)[0].reshape(-1).clone()
    start = after.numel() // 16 * 16
    after[start:] = p.reshape(-1)[start:]
    return after.reshape(p.shape), *adamw_step(p, g, m, v, **named)[1:]


MUTANTS = (
    Mutant("decay in the gradient", _mutant(_coupled), "Adam with L2 instead of decoupled decay"),
    Mutant("eps inside the root", _mutant(_eps_inside), "eps added to v"),
    Mutant("no bias correction", _mutant(_uncorrected), "the first steps come out too small"),
    Mutant("one step behind", _mutant(_other(step=lambda a: a["step"] + 1)), "the correction of the next step"),
    Mutant("state not written", _mutant(_stale_state), "m and v stay as they were"),
    Mutant("missing decay", _mutant(_other(weight_decay=lambda a: 0.0)), "weight_decay is not applied"),
    Mutant("maximize ignored", _mutant(_other(maximize=lambda a: False)), "the sign of the gradient"),
    Mutant("betas swapped", _mutant(_other(beta1=lambda a: a["beta2"], beta2=lambda a: a["beta1"])), "beta1 for beta2"),
    Mutant("bfloat16 inside", _mutant(_low_precision), "the update is made from rounded state"),
    Mutant("stale tail", _mutant(_stale_tail), "the vector tail is never written"),
    Mutant("nothing done", _mutant(lambda p, g, m, v, named: (p, m, v)), "no step at all"),
)
