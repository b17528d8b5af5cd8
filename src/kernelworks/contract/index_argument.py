"""Kinds of arguments of ops along an index: the index itself, which says along which dimension, and what goes there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract import need_dtype, need_same, need_tensor
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["IndexAlong", "SourceAlong", "picked_shape"]

DTYPES = (torch.int64, torch.int32)


def picked_shape(x: Any, dim: int, index: Any, rows: bool) -> tuple[int, ...]:
    """The shape of what an index picks from x along a dimension: the index's, or, of whole ``rows``, x's with as many
    along the dimension as the index has."""
    shape = tuple(x.shape)
    if not rows or not shape:
        return tuple(index.shape)
    dim %= len(shape)
    return (*shape[:dim], index.shape[0], *shape[dim + 1 :])


@dataclass(frozen=True)
class IndexAlong:
    """Indices along the dimension ``dim`` of the tensor ``of``: one for each element of a tensor of as many dimensions,
    in all others no longer than that; or with ``rows`` a vector, one for each row."""

    of: str
    dim: str
    rows: bool = False
    schema = "Tensor"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_dtype(name, value, DTYPES)
        given.check_device(name, value)
        shape, own = tuple(given[self.of].shape), tuple(value.shape)
        if self.rows:
            if len(own) != 1 or not shape:
                raise ValueError(f"{name} must have shape [M], of {self.of} with dimensions; got {list(own)}")
            return
        dim = given[self.dim] % max(1, len(shape))
        longer = any(n > m for i, (n, m) in enumerate(zip(own, shape, strict=False)) if i != dim)
        if len(own) != len(shape) or longer:
            raise ValueError(
                f"{name} must have as many dimensions as {self.of}, and outside of {self.dim} {given[self.dim]} be no "
                f"longer than {list(shape)}; got {list(own)}"
            )

    def right(self, given: GivenArguments) -> Any:
        return torch.zeros(2 if self.rows else tuple(given[self.of].shape), dtype=torch.int64)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield f"{name} is a number", 1, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of float32", right.float(), TypeError, f"{name} must have dtype"
        yield f"{name} of int16", right.short(), TypeError, f"{name} must have dtype"
        yield f"{name} of a dimension more", right[None], ValueError, f"{name} must have"
        if not self.rows:
            other = (given[self.dim] + 1) % right.dim()
            longer = torch.cat([right, right], other)
            yield f"{name} longer than {self.of}", longer, ValueError, f"{name} must have as many dimensions"

    def __str__(self) -> str:
        shape = "[M]" if self.rows else f"as many dimensions as {self.of}"
        return f"{shape} of int64, int32, indices along {self.dim} of {self.of}, any strides"


@dataclass(frozen=True)
class SourceAlong:
    """What goes where an index says: of the dtype of ``of``, and of the shape that the index picks from it."""

    of: str
    dim: str
    index: str
    rows: bool = False
    schema = "Tensor"

    def _shape(self, given: GivenArguments) -> tuple[int, ...]:
        return picked_shape(given[self.of], given[self.dim], given[self.index], self.rows)

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_same(name, value, self.of, given[self.of])
        shape = self._shape(given)
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}; got {list(value.shape)}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(self._shape(given), dtype=given[self.of].dtype)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield f"{name} is a number", 1.0, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of float64", right.double(), TypeError, f"{name} must have {self.of}'s dtype"
        yield f"{name} of a dimension more", right[None], ValueError, f"{name} must have shape"
        yield f"{name} longer", torch.cat([right, right]), ValueError, f"{name} must have shape"

    def __str__(self) -> str:
        return f"the shape that {self.index} picks from {self.of}, {self.of}'s dtype, any strides"
