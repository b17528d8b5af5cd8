"""Ops that reduce along a line and write each of its elements from what they found: what all their rooms share.

A room's ``plain`` is the op in torch's functions with its sums taken by ``total(terms, dim)``: a plain sum gives the
definition, other sums give the mutants. ``forms/along.py`` serves ops along any dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Mutant, need_dtype, need_same, need_tensor
from kernelworks.forms.arguments import SHAPE, Like, Wrong

__all__ = [
    "BENCH", "DEVICE_BENCH", "TARGETS", "Beside", "Column", "Dim", "Eps", "Line", "Make", "Total", "altered", "case",
    "sized", "total",
]  # fmt: skip

Total = Callable[[Tensor, int], Tensor]
Make = Callable[..., dict[str, Any]]  # make(generator, dtype, shape, kind of values)

TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "rowwise.cpp")
VECTOR = 16  # elements, of the widest vectors that rooms are compiled for


# ---------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Line:
    """A tensor of at least one dimension; ``which`` says what that is for."""

    schema = "Tensor"
    which: str = ""

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        need_tensor(name, value)
        need_dtype(name, value)
        if len(value.shape) < 1:
            raise ValueError(f"{name} must have at least one dimension{self.which}; got a scalar tensor")

    def right(self) -> Any:
        return torch.ones(SHAPE)

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield f"{name} is not a tensor", [1.0], TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} is an integer tensor", torch.ones(SHAPE).long(), TypeError, f"{name} must have dtype"
        yield f"{name} is a scalar tensor", torch.ones(()), ValueError, f"{name} must have at least one dimension"

    def __str__(self) -> str:
        return "a tensor of at least one dimension, any strides"


@dataclass(frozen=True)
class Dim:
    """One of another's dimensions."""

    schema = "int"
    of: str

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        dims = len(given[self.of].shape)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
        if not -dims <= value < dims:
            shape = list(given[self.of].shape)
            raise ValueError(f"{name} must be in [{-dims}, {dims - 1}] for {self.of} of {shape}, got {value}")

    def right(self) -> Any:
        return -1

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield f"{name} too large", 2, ValueError, f"{name} must be in [-2, 1]"
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"

    def __str__(self) -> str:
        return f"a dimension of {self.of}, also counted from the end"


@dataclass(frozen=True)
class Column:
    """A number for each element of another's last dimension, or None."""

    schema = "Tensor?"
    of: str

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        need_tensor(name, value, optional=True)
        if value is None:
            return
        other = given[self.of]
        need_same(name, value, self.of, other)
        if tuple(value.shape) != (other.shape[-1],):
            last = f"{self.of}'s last dimension"
            raise ValueError(f"{name} must have shape [{other.shape[-1]}], {last}; got {list(value.shape)}")

    def right(self) -> Any:
        return torch.ones(SHAPE[-1:])

    def wrong(self, name: str) -> Iterator[Wrong]:
        shape = f"{name} must have shape {list(SHAPE[-1:])}"
        yield f"{name} of another length", torch.ones(SHAPE[-1] - 1), ValueError, shape
        yield f"{name} of two dimensions", torch.ones(SHAPE), ValueError, shape
        yield (
            f"{name} of another dtype",
            torch.ones(SHAPE[-1:]).half(),
            TypeError,
            f"{name} must have {self.of}'s dtype",
        )

    def __str__(self) -> str:
        return f"a vector as long as {self.of}'s last dimension, of its dtype, or None"


@dataclass(frozen=True)
class Beside:
    """A tensor of another's shape, dtype and device, or None."""

    schema = "Tensor?"
    other: str

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        need_tensor(name, value, optional=True)
        if value is not None:
            Like(self.other).check(name, value, given)

    def right(self) -> Any:
        return None

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield from list(Like(self.other).wrong(name))[1:]

    def __str__(self) -> str:
        return f"{Like(self.other)}, or None"


@dataclass(frozen=True)
class Eps:
    """A number that is not negative, without a default: frameworks disagree."""

    schema = "float"

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        if not value >= 0.0:
            raise ValueError(f"{name} must be at least 0, got {value}")

    def right(self) -> Any:
        return 1e-5

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield f"negative {name}", -1.0, ValueError, f"{name} must be at least 0"

    def __str__(self) -> str:
        return "a number of at least 0"


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


def sized(
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


def altered(plain: Callable[..., Any]) -> tuple[Mutant, ...]:
    """Mutants of an op whose ``plain(*args, total=)`` takes its sums by ``total``: wrong sums."""

    def with_sum(sum_: Total) -> Callable[..., Any]:
        return lambda *args: plain(*args, total=sum_)

    return tuple(Mutant(name, with_sum(sum_), why) for name, sum_, why in SUMS)
