"""Known-wrong versions of kernel_matrix. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.similarity.kernel_matrix.contract import FUNCTIONS, value_of
from kernelworks.templates.mutants import stale_end

__all__ = ["MUTANTS"]

Change = Callable[[Tensor, Tensor, Tensor, str], Tensor]


def _mutant(name: str, change: Change, why: str) -> Mutant:
    """In float64 and rounded once, with one thing amiss."""

    def run(x: Tensor, y: Tensor, length_scale: Tensor, metric: str) -> Tensor:
        return change(x.double(), y.double(), length_scale.double(), metric).to(x.dtype)

    return Mutant(name, run, why)


def _of(metric: str) -> Change:
    return lambda x, y, scale, _: value_of(x, y, scale, metric)


def _of_output(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda x, y, scale, metric: change(value_of(x, y, scale, metric))


def _expanded(x: Tensor, y: Tensor, scale: Tensor, metric: str) -> Tensor:
    a, b = x.float(), y.float()
    q = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    k: Tensor = FUNCTIONS[metric].value(q.clamp(min=0).double() / scale.reshape(()).square())
    return k


def _without_last(x: Tensor, y: Tensor, scale: Tensor, metric: str) -> Tensor:
    keep = max(x.shape[1] - 1, 1)
    return value_of(x[:, :keep], y[:, :keep], scale, metric)


def _short(k: Tensor) -> Tensor:
    short = k.clone()
    short[:, k.shape[1] // 4 * 4 :] = 0.0
    return short


MUTANTS = (
    *(_mutant(f"always {word}", _of(word), f"{word} whatever is asked") for word in FUNCTIONS),
    _mutant("expanded squares", _expanded, "distances are |x|^2 + |y|^2 - 2 x.y in float32"),
    _mutant("length scale unsquared", lambda x, y, s, f: value_of(x, y, s.sqrt(), f), "r^2 / l"),
    _mutant("length scale cut off", lambda x, y, s, f: value_of(x, y, s.trunc(), f), "it is made an integer"),
    _mutant("short points", _without_last, "the last coordinate is left out"),
    _mutant(
        "bfloat16 points", lambda x, y, s, f: value_of(x.bfloat16().double(), y.bfloat16().double(), s, f),
        "points are rounded",
    ),
    _mutant("columns one aside", lambda x, y, s, f: value_of(x, y.roll(1, 0), s, f), "y is read one row aside"),
    _mutant("zero diagonal", _of_output(lambda k: torch.where(k == 1, 0.0, k)), "a point does not meet itself"),
    _mutant("short rows", _of_output(_short), "columns that fill no vector are not written"),
    _mutant("stale end", _of_output(stale_end), "the last element is never written"),
    _mutant("NaN swallowed", _of_output(lambda k: torch.nan_to_num(k, 0.0)), "NaN becomes 0"),
    _mutant("rounded twice", _of_output(lambda k: k.bfloat16().double()), "K is rounded to bfloat16 first"),
    _mutant("normalised", _of_output(lambda k: k / k.sum(1, keepdim=True)), "rows of K sum to 1, as a softmax's"),
    _mutant("zeros", _of_output(torch.zeros_like), "nothing is written"),
)  # fmt: skip
