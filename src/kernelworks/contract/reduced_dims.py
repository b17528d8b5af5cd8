"""The dimensions that a reduction runs along, as a kind of argument: one, several, or all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernelworks.contract import Request
from kernelworks.contract.arguments import need_int
from kernelworks.contract.row_layout import Lines, lines
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["Dims", "count_of", "declines_rows", "dims_of", "kept_shape", "reduced_lines", "reduced_shape"]

DimNumbers = int | tuple[int, ...] | list[int] | None


def dims_of(shape: tuple[int, ...], dim: DimNumbers) -> tuple[int, ...] | None:
    """The dimensions in order, counted from the front; None for all, as None and an empty list say."""
    if dim is None or not shape:
        return None
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(sorted([d % len(shape) for d in given])) or None


def kept_shape(shape: tuple[int, ...], dim: DimNumbers) -> tuple[int, ...]:
    """What a result has, with one element along each reduced dimension."""
    dims = dims_of(shape, dim)
    return tuple([1 if dims is None or i in dims else n for i, n in enumerate(shape)])


def reduced_shape(shape: tuple[int, ...], dim: DimNumbers, keepdim: bool) -> tuple[int, ...]:
    """The shape of a result."""
    if keepdim:
        return kept_shape(shape, dim)
    dims = dims_of(shape, dim)
    return () if dims is None else tuple([n for i, n in enumerate(shape) if i not in dims])


def count_of(shape: tuple[int, ...], dim: DimNumbers) -> int:
    """How many elements become one."""
    dims = dims_of(shape, dim)
    return math.prod(shape if dims is None else [shape[d] for d in dims])


def reduced_lines(x: Tensor, dim: DimNumbers, *, ordered: bool = False) -> Lines:
    """The lines of ``x`` along ``dim``, numbered as the elements of a contiguous result; a view wherever strides allow
    it, else one copy. Unless ``ordered`` all elements may come in the order of memory."""
    dims = dims_of(tuple(x.shape), dim)
    if dims is None:
        return lines(x, None, ordered=ordered)
    first, last = dims[0], dims[-1]
    if first == last:
        return lines(x, first)
    if last - first == len(dims) - 1 and x.is_contiguous():
        return lines(x.flatten(first, last), first)
    kept = [d for d in range(x.dim()) if d not in dims]
    turned = x.permute(*kept, *dims)
    return lines(turned.reshape(*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims)), len(kept))


FEWEST = 16  # lines side by side


def declines_rows(request: Request) -> str | None:
    """The guard of kernels that go down lines side by side, a thread each. They could take any lines, as the
    interpreter does to try them: on a GPU others are quicker there."""
    x = request.args["x"]
    if request.device != "cuda":
        return None
    dims = dims_of(x.shape, request.args["dim"])
    if dims is None or len(dims) > 1:
        return "reduces one dimension"
    inner = math.prod(x.shape[dims[0] + 1 :])
    if inner < FEWEST:
        return f"goes down at least {FEWEST} lines side by side, got {inner}"
    return None if x.stride[-1] == 1 else "the last dimension must have unit stride"


@dataclass(frozen=True)
class Dims:
    """Another's dimensions: one, several, each once, or with None (or an empty list) all; a scalar has one, as torch
    counts. ``every``: whether None may be said. Unless it may be ``empty``, there must be elements to reduce."""

    of: str
    every: bool = True
    empty: bool = True

    schema = "int[1]?"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        shape = tuple(given[self.of].shape)
        words = " or a list of them" + ", or None" * self.every
        if value is not None or not self.every:
            dims = max(len(shape), 1)
            several = value if isinstance(value, (list, tuple)) else (value,)
            for d in several:
                need_int(name, d, words)
                if not -dims <= d < dims:
                    raise ValueError(
                        f"{name} must be in [{-dims}, {dims - 1}] for {self.of} of {list(shape)}, got {value}"
                    )
            if len({*[d % dims for d in several]}) < len(several):
                raise ValueError(f"{name} must name a dimension once, got {value}")
        if not self.empty and not count_of(shape, value):
            raise ValueError(f"{name} must have elements to reduce, got {value} for {self.of} of {list(shape)}")

    def right(self, given: GivenArguments) -> Any:
        return -1

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        dims = len(given[self.of].shape)
        yield f"{name} too large", dims, ValueError, f"{name} must be in [{-dims}, {dims - 1}]"
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"
        yield f"{name} holds a float", (0, 1.0), TypeError, f"{name} must be an int"
        yield f"{name} twice", (-1, dims - 1), ValueError, f"{name} must name a dimension once"

    def __str__(self) -> str:
        some = "" if self.empty else ", which must have elements"
        return f"dimensions of {self.of}, also counted from the end{', or None for all' * self.every}{some}"
