"""Ops that reduce along a line and write each of its elements from what they found: what all their op packages share.

An op package's ``plain`` is the op in torch's functions with its sums taken by ``total(terms, dim)``: a plain sum gives
the definition, other sums give the mutants. ``templates/along.py`` serves ops along any dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Mutant
from kernelworks.templates.mutants import VECTOR

__all__ = ["BENCH", "DEVICE_BENCH", "TARGETS", "Make", "Total", "case", "sized_cases", "sum_mutants", "total"]

Total = Callable[[Tensor, int], Tensor]
Make = Callable[..., dict[str, Any]]  # make(generator, dtype, shape, kind of values)

TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "rowwise.cpp")


# ---------------------------------------------------------------- cases

BENCH = ((2048, 4096, (torch.bfloat16,)), (1024, 4096, (torch.float32,)), (1, 1024, (torch.float32, torch.bfloat16)))
DEVICE_BENCH = ((8192, 4096), (4096, 16384), (32768, 1024), (16, 1024))  # fill a GPU; and one for its host's time


def case(name: str, make: Make, shape: tuple[int, ...], kind: str = "normal", /, **more: Any) -> Case:
    """A case of ``make``'s arguments for one shape and kind of values; ``change(generator, dtype)`` replaces some."""
    change: Callable[..., dict[str, Any]] = more.pop("change", lambda generator, dtype: {})

    def made(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        given = make(generator, dtype, shape, kind)
        return given | change(generator, dtype)

    return Case(name, made, **more)


def sized_cases(
    make: Make, sizes: Iterable[tuple[Any, ...]], dtypes: tuple[torch.dtype, ...] | None = None
) -> Iterator[Case]:
    """A case for each (M, N) or (M, N, dtypes)."""
    for m, n, *own in sizes:
        kinds = own[0] if own else dtypes
        yield case(f"{m}x{n}", make, (m, n), **({"dtypes": kinds} if kinds else {}))


# ---------------------------------------------------------------- mutants


def total(terms: Tensor, dim: int) -> Tensor:
    """The sum along a dimension, which stays."""
    return terms.sum(dim, keepdim=True)


def _short_tile(terms: Tensor, dim: int) -> Tensor:
    n = terms.shape[dim]
    return total(terms.narrow(dim, 0, n // VECTOR * VECTOR) if n > VECTOR else terms, dim)


def _in_bfloat16(terms: Tensor, dim: int) -> Tensor:
    sum_ = torch.zeros_like(terms.sum(dim), dtype=torch.bfloat16)
    for part in terms.unbind(dim):
        sum_ = sum_ + part.bfloat16()
    return sum_.to(terms.dtype).unsqueeze(dim)


def _down(terms: Tensor, dim: int) -> Tensor:
    return total(terms, 0)


SUMS: tuple[tuple[str, Total, str], ...] = (
    ("short tile", _short_tile, "the vector tail is left out of the sum"),
    ("bfloat16 accumulation", _in_bfloat16, "the sum is kept in bfloat16"),
    ("down the columns", _down, "the sum runs along the first dimension"),
)


def sum_mutants(plain: Callable[..., Any]) -> tuple[Mutant, ...]:
    """Mutants of an op whose ``plain(*args, total=)`` takes its sums by ``total``: wrong sums."""

    def with_sum(sum_: Total) -> Callable[..., Any]:
        return lambda *args: plain(*args, total=sum_)

    return tuple(Mutant(name, with_sum(sum_), why) for name, sum_, why in SUMS)
