"""Known-wrong versions of products with a Laplacian or a polynomial kernel's matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.templates.mutants import VECTOR

__all__ = ["laplacian_mutants", "polynomial_mutants"]

Value = Callable[..., Tensor]  # K of x, y, the length scale and the numbers, all float64
BLOCK = 256  # columns that are summed up together


def _exact(value: Value, names: tuple[str, ...], args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """K and v in float64."""
    x, y, v, scale, *numbers = args
    named = dict(zip(names, numbers, strict=True))
    return value(x.double(), y.double(), scale.double().reshape(()), **named), v.double()


def _of_any_pair(value: Value, names: tuple[str, ...]) -> tuple[Mutant, ...]:
    """What any sum over pairs gets wrong."""

    def of_matrix(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def run(*args: Any) -> Tensor:
            k, v = _exact(value, names, args)
            return (change(k) @ v).to(args[2].dtype)

        return run

    def of_inputs(change: Callable[..., tuple[Any, ...]]) -> Callable[..., Tensor]:
        def run(*args: Any) -> Tensor:
            k, v = _exact(value, names, (*change(*args[:4]), *args[4:]))
            return (k @ v).to(args[2].dtype)

        return run

    def of_output(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        right = of_matrix(lambda k: k)
        return lambda *args: change(right(*args))

    def rounded(t: Tensor) -> Tensor:
        return t.bfloat16().to(t.dtype)

    def short(k: Tensor) -> Tensor:
        return torch.where(torch.arange(k.shape[1]) < k.shape[1] // 4 * 4, k, 0.0)

    def last_block(k: Tensor) -> Tensor:
        return torch.where(torch.arange(k.shape[1]) < max(k.shape[1] - 1, 0) // BLOCK * BLOCK, 0.0, k)

    def stale(output: Tensor) -> Tensor:
        stale = output.clone()
        stale[output.shape[0] // VECTOR * VECTOR :] = 0.0
        return stale

    def without_last(x: Tensor, y: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        keep = max(x.shape[1] - 1, 1)
        return x[:, :keep], y[:, :keep], v, scale

    return (
        Mutant("short points", of_inputs(without_last), "the last coordinate is left out"),
        Mutant("bfloat16 points", of_inputs(lambda x, y, v, s: (rounded(x), rounded(y), v, s)), "points are rounded"),
        Mutant("columns one aside", of_inputs(lambda x, y, v, s: (x, y.roll(1, 0), v, s)), "y is read one row aside"),
        Mutant("weights one aside", of_inputs(lambda x, y, v, s: (x, y, v.roll(1, 0), s)), "v is read one row aside"),
        Mutant("length scale cut off", of_inputs(lambda x, y, v, s: (x, y, v, s.trunc())), "it is made an integer"),
        Mutant("length scale rooted", of_inputs(lambda x, y, v, s: (x, y, v, s.double().sqrt())), "a power too low"),
        Mutant("short sum", of_matrix(short), "columns that fill no vector are left out"),
        Mutant("last block", of_matrix(last_block), "a block of columns overwrites the ones before it"),
        Mutant("bfloat16 K", of_matrix(rounded), "K is rounded to bfloat16"),
        Mutant("normalised", of_matrix(lambda k: k / k.sum(1, keepdim=True)), "rows of K sum to 1, as a softmax's"),
        Mutant("stale rows", of_output(stale), "rows that fill no vector are not written"),
        Mutant("NaN swallowed", of_output(lambda o: torch.nan_to_num(o, 0.0)), "NaN becomes 0"),
        Mutant("rounded twice", of_output(rounded), "the result is rounded to bfloat16, then to its dtype"),
        Mutant("zeros", of_output(torch.zeros_like), "nothing is written"),
    )


def _of(names: tuple[str, ...], value: Value, name: str, wrong: str) -> Mutant:
    def run(*args: Any) -> Tensor:
        k, v = _exact(value, names, args)
        return (k @ v).to(args[2].dtype)

    return Mutant(name, run, wrong)


def laplacian_mutants(value: Value) -> tuple[Mutant, ...]:
    def euclidean(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / scale)

    def largest(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return torch.exp(-(x[:, None] - y[None]).abs().amax(2) / scale)

    return (
        *_of_any_pair(value, ()),
        _of((), euclidean, "euclidean distance", "a Matern kernel of order 1/2"),
        _of((), largest, "largest difference", "the coordinates' maximum in the place of their sum"),
        _of((), lambda x, y, s: value(x, y, 2 * s), "halved", "exp(-q / 2)"),
        _of((), lambda x, y, s: value(x, y, s) ** 0.6931471805599453, "powers of two", "2^-q"),
    )


def polynomial_mutants(value: Value) -> tuple[Mutant, ...]:
    names = ("degree", "coef0")

    def changed(change: Callable[[int, float], tuple[int, float]]) -> Value:
        def run(x: Tensor, y: Tensor, scale: Tensor, degree: int, coef0: float) -> Tensor:
            other = change(degree, coef0)
            return value(x, y, scale, degree=other[0], coef0=other[1])

        return run

    def positive(x: Tensor, y: Tensor, scale: Tensor, degree: int, coef0: float) -> Tensor:
        return value(x, y, scale, degree=1, coef0=coef0).abs() ** degree

    return (
        *_of_any_pair(value, names),
        _of(names, changed(lambda p, c: (p, 0.0)), "no offset", "coef0 is left out"),
        _of(names, changed(lambda p, c: (p, 1.0)), "offset of 1", "coef0 is taken for 1"),
        _of(names, changed(lambda p, c: (p + 1, c)), "a degree more", "one multiplication too many"),
        _of(names, changed(lambda p, c: (min(p, 4), c)), "degree of at most 4", "higher powers are cut off"),
        _of(names, positive, "power of the size", "|t|^p, as by exp and log"),
    )
