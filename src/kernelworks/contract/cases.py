"""Values and lengths that kernels fail on, shared by the op packages' cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case

__all__ = ["LENGTHS", "SMOOTH", "VALUES", "draw", "normal", "row_cases"]

# Around every vector width we compile for (4, 8, 16) and the unrolled blocks of it, primes, 0 and 1.
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 67, 127, 128, 129, 257, 509, 1024, 1031, 4096)


def normal(generator: Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
    """Normal values, rounded to ``dtype``."""
    return (torch.randn(shape, generator=generator) * scale + mean).to(dtype)


def _sprinkle(*values: float) -> Callable[[Generator, torch.dtype, tuple[int, ...]], Tensor]:
    def make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        x = normal(generator, dtype, *shape)
        flat = x.view(-1)
        for i, value in enumerate(values):  # spread, the last one in the very last element: the vector tail
            if flat.numel():
                flat[(flat.numel() - 1 - 37 * (len(values) - 1 - i)) % flat.numel()] = value
        return x

    return make


# Kinds of values by name. "huge" and "tiny" stay finite in every dtype; their squares do not in float32.
VALUES: dict[str, Callable[[Generator, torch.dtype, tuple[int, ...]], Tensor]] = {
    "normal": lambda g, d, s: normal(g, d, *s),
    "large_mean": lambda g, d, s: normal(g, d, *s, scale=0.5, mean=100.0),
    "tiny": lambda g, d, s: normal(g, d, *s, scale=1e-4 if d == torch.float16 else 1e-20),
    "huge": lambda g, d, s: normal(g, d, *s, scale=8e3 if d == torch.float16 else 1e25),
    "subnormal": lambda g, d, s: normal(g, d, *s, scale=torch.finfo(d).smallest_normal / 8),
    "constant": lambda g, d, s: torch.full(s, 1.5, dtype=d),
    "zeros": lambda g, d, s: torch.zeros(s, dtype=d),
    "inf": _sprinkle(float("inf")),
    "negative_inf": _sprinkle(float("-inf"), 1.0),
    "nan": _sprinkle(float("nan")),
}
SMOOTH = ("normal", "large_mean", "tiny", "constant")  # where derivatives are compared too


def draw(kind: str, generator: Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor of one kind of ``VALUES``."""
    return VALUES[kind](generator, dtype, shape)


def row_cases(
    make: Callable[[Generator, torch.dtype, tuple[int, ...], str], dict[str, Any]],
    *,
    lengths: Iterable[int] = LENGTHS,
    kinds: Iterable[str] = tuple(VALUES),
    gradient_kinds: Iterable[str] = SMOOTH,
) -> tuple[Case, ...]:
    """Cases of an op that works along rows: every length on a few rows, then every kind of values, then layouts.

    ``make(generator, dtype, shape, kind)`` gives the arguments.
    """
    gradient_kinds = tuple(gradient_kinds)

    def case(name: str, shape: tuple[int, ...], kind: str, **more: Any) -> Case:
        return Case(name, lambda g, d: make(g, d, shape, kind), **more)

    by_length = [case(f"N={n}", (3, n), "normal", layouts=n in (17, 128)) for n in lengths]
    by_kind = [
        case(f"{kind} N={n}", (5, n), kind, gradients=kind in gradient_kinds) for kind in kinds for n in (33, 1031)
    ]
    by_shape = [
        case("shape ()-like [N]", (65,), "normal"),
        case("shape [2, 3, 4, N]", (2, 3, 4, 40), "normal", layouts=True),
        case("no rows", (0, 64), "normal"),
        case("many rows", (1027, 48), "normal"),
    ]
    return (*by_length, *by_kind, *by_shape)
