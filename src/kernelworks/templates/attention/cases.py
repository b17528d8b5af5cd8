"""What ops of attention are tried on: values of queries, keys and values, lengths of sequences, tables of cases."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case
from kernelworks.contract.cases import draw, normal

__all__ = [
    "FEW_TOKENS", "KINDS", "MORE_QUERIES", "ODD_VALUES", "WIDTHS", "CaseMaker", "Lengths", "draw_heads", "draw_lengths",
]  # fmt: skip

Lengths = tuple[tuple[int, int], ...]  # of queries and of keys of each sequence

WIDTHS = (1, 3, 8, 15, 16, 17, 33, 64, 80, 127, 128, 256)  # head_dim around those of vectors
KINDS = ("tiny", "subnormal", "large", "large_mean", "constant", "zeros")  # of values; large ones make large scores
ODD_VALUES = (math.inf, -math.inf, math.nan)
# Lengths of sequences by name, with nothing between two of them.
FEW_TOKENS: tuple[tuple[str, Lengths], ...] = (
    ("of none", ()), ("0", ((0, 0),)), ("1", ((1, 1),) * 5),
    ("0 and 1", ((0, 0), (1, 1), (0, 1), (1, 0), (2, 2), (0, 3), (3, 0), (0, 0))),
    ("0 in front and behind", ((0, 0), (7, 9), (0, 0))),
)  # fmt: skip
MORE_QUERIES: tuple[str, Lengths] = ("more queries than keys", ((70, 20), (33, 1), (129, 64)))


def draw_heads(
    kind: str, generator: Generator, dtype: torch.dtype, queries: tuple[int, ...], keys: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of these shapes."""
    of_values = kind if kind != "large" else "normal"
    q = draw(of_values, generator, dtype, *queries)
    k = normal(generator, dtype, *keys)
    v = draw(of_values, generator, dtype, *keys)
    return (q * 30, k * 30, v) if kind == "large" else (q, k, v)


def draw_lengths(count: int, most: int, seed: int = 0, least: int = 0) -> tuple[int, ...]:
    """So many lengths from ``least`` to ``most``: many short ones and few long."""
    chosen = random.Random(seed)
    return tuple(int(most * chosen.random() ** 2 + (least or 0.5)) for _ in range(count))


@dataclass(frozen=True)
class CaseMaker:
    """Cases of what ``make(generator, dtype, **made)`` gives. ``name_of(name, made)`` says more of a name."""

    make: Callable[..., dict[str, Any]]
    name_of: Callable[[str, dict[str, Any]], str] = lambda name, made: name

    def case(self, name: str, *, gradients: bool = True, layouts: bool = False, **made: Any) -> Case:
        return Case(
            self.name_of(name, made), lambda g, d: self.make(g, d, **made), gradients=gradients, layouts=layouts
        )

    def table(self, name: str, fields: str, rows: Iterable[Any], **others: Any) -> Iterator[Case]:
        """A case for each of ``rows``, which hold ``fields``: a tuple, or the value of a single one. ``name`` is a
        format of theirs. ``others`` are the same for all, or a function of a row by its fields."""
        names = fields.split()
        for row in rows:
            made = dict(zip(names, row if len(names) > 1 else (row,), strict=True))
            more = {key: value(made) if callable(value) else value for key, value in others.items()}
            yield self.case(name.format(**made), **{key: v for key, v in made.items() if key[0] != "_"}, **more)

    def odd_value(
        self, name: str, tensor: str, value: float, place: Callable[..., Any], *, gradients: bool = False, **made: Any
    ) -> Case:
        """One number, NaN or infinity, at ``place(args)`` of a tensor."""

        def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
            args = self.make(generator, dtype, **made)
            args[tensor][place(args)] = value
            return args

        return Case(name, make, gradients=gradients)

    def timed_case(self, name: str, dtype: torch.dtype, **made: Any) -> Case:
        """A case to measure, of one dtype."""
        return Case(name, lambda g, d: self.make(g, d, **made), dtypes=(dtype,))
