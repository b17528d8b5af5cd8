"""Known-wrong versions of triplet_margin_loss. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.reduction.triplet_margin_loss.contract import ARGUMENTS, reference
from kernelworks.templates.mutants import VECTOR, generic, shift_elements

__all__ = ["MUTANTS"]

NAMES = tuple(ARGUMENTS)


def _with(change: Callable[[dict[str, Any]], dict[str, Any]], after: Callable[[Tensor], Tensor] = lambda y: y) -> Any:
    """The definition in float64 of arguments that are changed."""

    def run(*args: Any) -> Tensor:
        given: dict[str, Any] = {
            n: a.double() if isinstance(a, Tensor) else a for n, a in zip(NAMES, args, strict=True)
        }
        return after(reference(**given | change(given))[0]).to(args[0].dtype)

    return run


def _distance(one: Tensor, other: Tensor, p: float, eps: float) -> Tensor:
    distance: Tensor = torch.linalg.vector_norm(one - other + eps, p, -1)
    return distance


def _made(how: Callable[[Tensor, Tensor, float], Tensor], power: float = 1.0) -> Any:
    """A row's loss of both distances and the margin."""

    def run(a: Tensor, p: Tensor, n: Tensor, margin: float, order: float, eps: float, swap: bool, word: str) -> Tensor:
        one, two, three = a.double(), p.double(), n.double()
        near = _distance(one, three, order, eps)
        if swap:
            near = torch.minimum(near, _distance(two, three, order, eps))
        each = how(_distance(one, two, order, eps) ** power, near**power, margin)
        return (each if word == "none" else each.mean() if word == "mean" else each.sum()).to(a.dtype)

    return run


def _without_tail(given: dict[str, Any]) -> dict[str, Any]:
    whole = given["x"].shape[-1] // VECTOR * VECTOR
    return {n: given[n][..., : whole or None] for n in ("x", "positive", "negative")}


def _without_nan(given: dict[str, Any]) -> dict[str, Any]:
    inf = torch.inf
    return {n: given[n].nan_to_num(0.0, inf, -inf) for n in ("x", "positive", "negative")}


MUTANTS = (
    *generic(reference, ("x", "positive", "negative"), NAMES),
    Mutant("off by one tile", _with(_without_tail), "what is left of a row behind its tiles is left out"),
    Mutant("never swapped", _with(lambda g: {"swap": False}), "the positive's distance is not looked at"),
    Mutant("always swapped", _with(lambda g: {"swap": True}), "the positive's distance is taken unasked"),
    Mutant("always p = 2", _with(lambda g: {"p": 2.0}), "the Euclidean distance whatever is asked"),
    Mutant("no eps", _with(lambda g: {"eps": 0.0}), "eps is left out"),
    Mutant("eps within", _with(lambda g: {"eps": -g["eps"]}), "eps is taken off"),
    Mutant("margin of 1", _with(lambda g: {"margin": 1.0}), "the usual margin whatever is asked"),
    Mutant("always mean", _with(lambda g: {"reduction": "mean"}), "the mean whatever is asked"),
    Mutant("always sum", _with(lambda g: {"reduction": "sum"}), "the sum whatever is asked"),
    Mutant("not cut", _made(lambda far, near, margin: margin + far - near), "losses below 0 count"),
    Mutant("squared distances", _made(lambda f, n, m: (m + f - n).clamp_min(0), 2.0), "no root is taken"),
    Mutant("no margin", _made(lambda far, near, margin: (far - near).clamp_min(0)), "the margin is left out"),
    Mutant("NaN ignored", _with(_without_nan), "NaN is 0"),
    Mutant("positive aside", _with(lambda g: {"positive": shift_elements(g["positive"])}), "it is read one aside"),
)  # fmt: skip
