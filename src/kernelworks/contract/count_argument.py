"""A kind of argument: how many elements of a line are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelworks.contract import ABSENT
from kernelworks.contract.arguments import need_int
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["Count"]


@dataclass(frozen=True)
class Count:
    """How many of another's elements along a dimension, which may be an argument: from ``least`` to all of them."""

    schema = "int"
    of: str
    dim: str | int
    least: int = 0

    def _dim(self, given: GivenArguments) -> Any:
        return self.dim if isinstance(self.dim, int) else given.get(self.dim, ABSENT)

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_int(name, value)
        shape, dim = tuple(given[self.of].shape), self._dim(given)
        if isinstance(dim, bool) or not isinstance(dim, int) or not -max(len(shape), 1) <= dim < max(len(shape), 1):
            return  # refused in its own words
        most = shape[dim] if shape else 1
        if not self.least <= value <= most:
            raise ValueError(
                f"{name} must be in [{self.least}, {most}], {self.of}'s size along {self.dim}; got {value}"
            )

    def right(self, given: GivenArguments) -> Any:
        return 1

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        most = given[self.of].shape[self._dim(given)]
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"
        yield f"{name} is a bool", True, TypeError, f"{name} must be an int"
        yield f"{name} above the size", most + 1, ValueError, f"{name} must be in [{self.least}, {most}]"
        yield f"{name} below {self.least}", self.least - 1, ValueError, f"{name} must be in [{self.least}, {most}]"

    def __str__(self) -> str:
        return f"a count of at most {self.of}'s size along {self.dim}" + f", at least {self.least}" * (self.least > 0)
