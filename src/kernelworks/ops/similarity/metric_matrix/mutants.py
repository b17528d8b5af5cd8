"""Known-wrong versions of kernel functions' matrices. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.similarity.metric_matrix.contract import KernelFunction, gamma_of
from kernelworks.templates.mutants import stale_end

__all__ = ["mutants"]

Matrix = Callable[..., Tensor]  # K of x and y, float64, and the numbers by name


def _short(k: Tensor) -> Tensor:
    short = k.clone()
    short[:, k.shape[1] // 4 * 4 :] = 0.0
    return short


def _last_rows(k: Tensor) -> Tensor:
    stale = k.clone()
    stale[k.shape[0] // 4 * 4 :] = 0.0
    return stale


def _of_any(value: Matrix) -> dict[str, tuple[Matrix, str]]:
    """What every kernel function's matrix gets wrong."""

    def output(change: Callable[[Tensor], Tensor]) -> Matrix:
        return lambda x, y, **numbers: change(value(x, y, **numbers))

    def short_points(x: Tensor, y: Tensor, **numbers: Any) -> Tensor:
        keep = max(x.shape[1] - 1, 1)
        fixed = {name: gamma_of(n, x.shape[1]) if name == "gamma" else n for name, n in numbers.items()}
        return value(x[:, :keep], y[:, :keep], **fixed)

    def rounded_points(x: Tensor, y: Tensor, **numbers: Any) -> Tensor:
        return value(x.bfloat16().double(), y.bfloat16().double(), **numbers)

    return {
        "short points": (short_points, "the last coordinate is left out"),
        "bfloat16 points": (rounded_points, "points are rounded"),
        "columns one aside": (lambda x, y, **n: value(x, y.roll(1, 0), **n), "y is read one row aside"),
        "rows one aside": (lambda x, y, **n: value(x.roll(1, 0), y, **n), "x is read one row aside"),
        "short rows": (output(_short), "columns that fill no vector are not written"),
        "last rows": (output(_last_rows), "rows that fill no block of four are not written"),
        "stale end": (output(stale_end), "the last element is never written"),
        "NaN swallowed": (output(lambda k: torch.nan_to_num(k, 0.0)), "NaN becomes 0"),
        "rounded twice": (output(lambda k: k.bfloat16().double()), "K is rounded to bfloat16 first"),
        "normalised": (output(lambda k: k / k.sum(1, keepdim=True)), "rows of K sum to 1, as a softmax's"),
        "zeros": (output(torch.zeros_like), "nothing is written"),
    }


def _of_gamma(value: Matrix) -> dict[str, tuple[Matrix, str]]:
    def changed(change: Callable[[float | None, int], float]) -> Matrix:
        return lambda x, y, gamma, **n: value(x, y, gamma=change(gamma, x.shape[1]), **n)

    return {
        "gamma of 1 / d": (changed(lambda g, d: 1.0 / d), "the gamma that is given is not read"),
        "gamma of 1": (changed(lambda g, d: 1.0 if g is None else g), "the gamma that is not given is not 1 / d"),
        "gamma squared": (changed(lambda g, d: gamma_of(g, d) ** 2), "both points are scaled with it"),
        "gamma turned over": (changed(lambda g, d: 1 / gamma_of(g, d)), "taken for a length scale"),
    }


def _of_polynomial(value: Matrix) -> dict[str, tuple[Matrix, str]]:
    def changed(change: Callable[[int, float], tuple[int, float]]) -> Matrix:
        def run(x: Tensor, y: Tensor, degree: int, gamma: float | None, coef0: float) -> Tensor:
            other = change(degree, coef0)
            return value(x, y, degree=other[0], gamma=gamma, coef0=other[1])

        return run

    def size(x: Tensor, y: Tensor, degree: int, gamma: float | None, coef0: float) -> Tensor:
        return value(x, y, degree=1, gamma=gamma, coef0=coef0).abs() ** degree

    return {
        "no offset": (changed(lambda p, c: (p, 0.0)), "coef0 is left out"),
        "offset of 1": (changed(lambda p, c: (p, 1.0)), "coef0 is taken for 1"),
        "a degree more": (changed(lambda p, c: (p + 1, c)), "one multiplication too many"),
        "degree of at least 1": (changed(lambda p, c: (max(p, 1), c)), "t^0 is not 1"),
        "degree of at most 4": (changed(lambda p, c: (min(p, 4), c)), "higher powers are cut off"),
        "power of the size": (size, "|t|^p, as by exp and log"),
    }


def _of_laplacian(value: Matrix) -> dict[str, tuple[Matrix, str]]:
    def of_distance(distance: Callable[[Tensor], Tensor]) -> Matrix:
        return lambda x, y, gamma: torch.exp(-gamma_of(gamma, x.shape[1]) * distance((x[:, None] - y[None]).abs()))

    return {
        "euclidean distance": (of_distance(lambda t: t.square().sum(2).sqrt()), "a Matern function of order 1/2"),
        "largest difference": (of_distance(lambda t: t.amax(2)), "the maximum in the place of the sum"),
        "squared": (of_distance(lambda t: t.square().sum(2)), "rbf"),
        "powers of two": (lambda x, y, gamma: value(x, y, gamma=gamma) ** 0.6931471805599453, "2^-q"),
    }


def mutants(name: str, function: KernelFunction) -> tuple[Mutant, ...]:
    value = function.value
    wrong = _of_any(value)
    if "gamma" in function.numbers:
        wrong |= _of_gamma(value)
    if "degree" in function.numbers:
        wrong |= _of_polynomial(value)
    if name == "laplacian_kernel":
        wrong |= _of_laplacian(value)
    if name == "linear_kernel":
        wrong["cosine"] = (
            lambda x, y: torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).T,
            "of length 1",
        )
        wrong["gamma of 1 / d"] = (lambda x, y: value(x, y, gamma=None), "a polynomial's default")

    def rounded(change: Matrix) -> Callable[..., Tensor]:
        def run(x: Tensor, y: Tensor, *numbers: Any, **named: Any) -> Tensor:
            named |= dict(zip(function.numbers, numbers, strict=False))
            return change(x.double(), y.double(), **named).to(x.dtype)

        return run

    return tuple(Mutant(label, rounded(change), why) for label, (change, why) in wrong.items())
