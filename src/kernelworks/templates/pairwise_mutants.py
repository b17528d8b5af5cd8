"""What any sum over pairs gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.templates.mutants import VECTOR

__all__ = ["mutants_of", "of_function", "squared_distances"]

Distances = Callable[[Tensor, Tensor, Tensor], Tensor]
BLOCK = 256  # columns that are summed up together


def squared_distances(x: Tensor, y: Tensor, length_scale: Tensor) -> Tensor:
    """[N, M] of ``|x_i - y_j|^2 / l^2``, by differences: no term is larger than the result."""
    unit = length_scale.reshape(())
    total = x.new_zeros(x.shape[0], y.shape[0])
    for d in range(x.shape[1]):
        total = total + ((x[:, d, None] - y[None, :, d]) / unit).square()
    return total


def of_function(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """An op with this function of s in the place of k."""

    def run(x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor) -> Tensor:
        s = squared_distances(x.double(), y.double(), length_scale.double())
        return (function(s) @ v.double()).to(v.dtype)

    return run


def mutants_of(template: Any) -> tuple[Mutant, ...]:
    """The known-wrong versions of an op of the pairwise template."""

    def matrix(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        exact: Tensor = template.composite(x.double(), y.double(), torch.eye(len(y)).double(), scale.double())
        return exact

    def of_matrix(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda x, y, v, scale: (change(matrix(x, y, scale)) @ v.double()).to(v.dtype)

    def of_inputs(change: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
        def run(*args: Tensor) -> Tensor:
            x, y, v, scale = change(*args)
            return (matrix(x, y, scale) @ v.double()).to(v.dtype)

        return run

    def of_output(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        right = of_matrix(lambda k: k)
        return lambda *args: change(right(*args))

    def expanded(x: Tensor, y: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        a, b = x.float(), y.float()
        q = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        s = q.clamp(min=0).double() / scale.double().reshape(()).square()
        wrong: Tensor = template.value(s) @ v.double()
        return wrong.to(v.dtype)

    def rounded(t: Tensor) -> Tensor:
        return t.bfloat16().to(t.dtype)

    return (
        Mutant("expanded squares", expanded, "distances are |x|^2 + |y|^2 - 2 x.y in float32"),
        Mutant("length scale unsquared", of_inputs(lambda x, y, v, scale: (x, y, v, scale.double().sqrt())), "r^2 / l"),
        Mutant(
            "length scale cut off", of_inputs(lambda x, y, v, scale: (x, y, v, scale.trunc())), "it is made an integer"
        ),
        Mutant("short points", of_inputs(_without_last), "the last coordinate is left out"),
        Mutant(
            "bfloat16 points",
            of_inputs(lambda x, y, v, scale: (rounded(x), rounded(y), v, scale)),
            "points are rounded",
        ),
        Mutant(
            "columns one aside",
            of_inputs(lambda x, y, v, scale: (x, y.roll(1, 0), v, scale)),
            "y is read one row aside",
        ),
        Mutant(
            "weights one aside",
            of_inputs(lambda x, y, v, scale: (x, y, v.roll(1, 0), scale)),
            "v is read one row aside",
        ),
        Mutant("zero diagonal", of_matrix(lambda k: torch.where(k == 1, 0.0, k)), "a point does not meet itself"),
        Mutant("short sum", of_matrix(_short), "columns that fill no vector are left out"),
        Mutant("last block", of_matrix(_last_block), "a block of columns overwrites the ones before it"),
        Mutant("bfloat16 K", of_matrix(rounded), "K is rounded to bfloat16"),
        Mutant("normalised", of_matrix(lambda k: k / k.sum(1, keepdim=True)), "rows of K sum to 1, as a softmax's"),
        Mutant("stale rows", of_output(_stale), "rows that fill no vector are not written"),
        Mutant("NaN swallowed", of_output(lambda o: torch.nan_to_num(o, 0.0)), "NaN becomes 0"),
        Mutant("rounded twice", of_output(rounded), "the result is rounded to bfloat16, then to its dtype"),
        Mutant("zeros", of_output(torch.zeros_like), "nothing is written"),
    )


def _without_last(x: Tensor, y: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    keep = max(x.shape[1] - 1, 1)
    return x[:, :keep], y[:, :keep], v, scale


def _short(k: Tensor) -> Tensor:
    short = k.clone()
    short[:, k.shape[1] // 4 * 4 :] = 0.0
    return short


def _last_block(k: Tensor) -> Tensor:
    last = k.clone()
    last[:, : max(k.shape[1] - 1, 0) // BLOCK * BLOCK] = 0.0
    return last


def _stale(output: Tensor) -> Tensor:
    stale = output.clone()
    stale[output.shape[0] // VECTOR * VECTOR :] = 0.0
    return stale
