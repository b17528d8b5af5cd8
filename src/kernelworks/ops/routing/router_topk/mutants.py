"""Known-wrong versions of router_topk. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.routing.router_topk.contract import reference, weights_of
from kernelworks.templates.mutants import VECTOR

__all__ = ["MUTANTS"]

Pair = tuple[Tensor, Tensor]
Way = tuple[str, bool, float]  # scoring, normed, scale


def _weighed(change: Callable[[Tensor, Tensor, Way], Tensor]) -> Callable[..., Pair]:
    """The right experts with other weights, of the logits in float64."""

    def run(logits: Tensor, k: int, *way: Any) -> Pair:
        indices = torch.topk(logits, k, -1).indices
        return change(logits.double(), indices, way).to(logits.dtype), indices

    return run


def _chosen(change: Callable[[Tensor], Tensor]) -> Callable[..., Pair]:
    """The experts with the largest of something else than the logits, and what they weigh."""

    def run(logits: Tensor, k: int, *way: Any) -> Pair:
        indices = torch.topk(change(logits), k, -1).indices
        return weights_of(logits.double(), indices, *way).to(logits.dtype), indices

    return run


def _named(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Pair]:
    """The right weights with other indices; of the indices and the logits."""

    def run(logits: Tensor, k: int, *way: Any) -> Pair:
        weights, indices = reference(logits.double(), k, *way)
        return weights.to(logits.dtype), change(indices, logits)

    return run


def _others(logits: Tensor, indices: Tensor, way: Way) -> Tensor:
    """Of all experts where the chosen ones are meant, and back."""
    if way[0] == "sigmoid":
        total = torch.sigmoid(logits).sum(-1, keepdim=True)
        return (
            torch.sigmoid(logits.gather(-1, indices)) / total * way[2] if way[1] else weights_of(logits, indices, *way)
        )
    return weights_of(logits, indices, way[0], not way[1], way[2])


def _without_maximum(logits: Tensor, indices: Tensor, way: Way) -> Tensor:
    if way[0] == "sigmoid":
        return weights_of(logits, indices, *way)
    powers = logits.float().exp()
    line = powers.gather(-1, indices) if way[1] else powers
    return (powers.gather(-1, indices) / line.sum(-1, keepdim=True) * way[2]).double()


def _repeated(indices: Tensor, logits: Tensor) -> Tensor:
    indices = indices.clone()
    if indices.shape[1] > 1:
        indices[:, -1] = indices[:, -2]
    return indices


def _tail(x: Tensor) -> Tensor:
    x, whole = x.clone(), x.shape[1] // VECTOR * VECTOR
    if whole:
        x[:, whole:] = -torch.inf
    return x


def _swapped(logits: Tensor, k: int, *way: Any) -> Pair:
    """The last two change places, weights and indices."""
    weights, indices = reference(logits.double(), k, *way)
    order = [*range(k - 2), k - 1, k - 2] if k > 1 else [0]
    return weights[:, order].to(logits.dtype), indices[:, order]


MUTANTS = (
    Mutant("normed by the others", _weighed(_others), "the sum is over all experts, not the chosen, and back"),
    Mutant("never normed", _weighed(lambda x, i, way: weights_of(x, i, way[0], False, way[2])), "no sum is divided by"),
    Mutant("the other scores", _weighed(lambda x, i, way: weights_of(
        x, i, "softmax" if way[0] == "sigmoid" else "sigmoid", *way[1:])), "softmax for sigmoid, and back"),
    Mutant("no scale", _weighed(lambda x, i, way: weights_of(x, i, way[0], way[1], 1.0)), "the scale is left out"),
    Mutant("no maximum", _weighed(_without_maximum), "exponentials are taken of the logits themselves"),
    Mutant("bfloat16 scores", _weighed(lambda x, i, way: weights_of(x.bfloat16().double(), i, *way)), "rounded logits"),
    Mutant("rounded twice", _weighed(lambda x, i, way: weights_of(x, i, *way).bfloat16().double()), "through bfloat16"),
    Mutant("NaN weighs nothing", _weighed(lambda x, i, way: weights_of(x, i, *way).nan_to_num(0.0)), "NaN is 0"),
    Mutant("zeros", _weighed(lambda x, i, way: torch.zeros_like(x.gather(-1, i))), "nothing is written"),
    Mutant("the smallest", _chosen(lambda x: -x), "the k smallest logits"),
    Mutant("magnitude", _chosen(lambda x: x.abs()), "chosen without signs"),
    Mutant("chosen among bfloat16", _chosen(lambda x: x.bfloat16()), "logits that differ little are taken for equal"),
    Mutant("chosen by scores", _chosen(lambda x: torch.softmax(x, -1).bfloat16()), "scores that round to one number"),
    Mutant("NaN lost", _chosen(lambda x: x.nan_to_num(-torch.inf, torch.inf, -torch.inf)), "NaN is below all numbers"),
    Mutant("tail left out", _chosen(_tail), "experts behind the last whole vector are not looked at"),
    Mutant("named twice", _named(_repeated), "the last but one is named again in place of the last"),
    Mutant("one aside", _named(lambda i, x: (i + 1) % x.shape[1]), "the next expert is named"),
    Mutant("32 bits", _named(lambda i, x: i.int()), "indices of another dtype than int64"),
    Mutant("a token aside", _named(lambda i, x: i.roll(1, 0)), "the experts of the token before"),
    Mutant("unsorted end", _swapped, "the last two change places"),
)  # fmt: skip
