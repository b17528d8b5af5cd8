"""Kinds of arguments of what slides over pictures: one int or a pair of them, and groups of channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelworks.contract.arguments import need_int
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["Groups", "IntPair", "Pair", "pair"]

Pair = tuple[int, int]


def pair(value: Any) -> Pair:
    """The two ints that one int, or a list of one or two, stands for."""
    if isinstance(value, int):
        return value, value
    return int(value[0]), int(value[-1])


@dataclass(frozen=True)
class IntPair:
    """An int for both dimensions of a picture, or one for each, at least ``least``; also None if it is ``optional``."""

    least: int = 0
    usual: int = 1
    optional: bool = False

    @property
    def schema(self) -> str:
        return "int[2]?" if self.optional else "int[2]"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None and self.optional:
            return
        several = isinstance(value, (list, tuple))
        if several and len(value) not in (1, 2):
            raise ValueError(f"{name} must be an int or a pair of ints, got {len(value)} of them")
        for item in value if several else (value,):
            need_int(name, item, " or a pair of ints")
            if item < self.least:
                raise ValueError(f"{name} must be at least {self.least}, got {value}")
            if item >= 2**31:
                raise ValueError(f"{name} must be below 2^31, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return self.usual

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int or a pair of ints"
        yield f"{name} is a bool", True, TypeError, f"{name} must be an int or a pair of ints"
        yield f"{name} holds a float", (1, 1.0), TypeError, f"{name} must be an int or a pair of ints"
        yield f"{name} of three", (1, 1, 1), ValueError, f"{name} must be an int or a pair of ints, got 3"
        yield f"{name} too small", self.least - 1, ValueError, f"{name} must be at least {self.least}"
        yield f"{name} too small in one", [self.usual, self.least - 1], ValueError, f"{name} must be at least"
        yield f"{name} of 32 bits", 2**31, ValueError, f"{name} must be below 2^31"

    def __str__(self) -> str:
        return f"an int of at least {self.least}, or a pair of them" + ", or None" * self.optional


@dataclass(frozen=True)
class Groups:
    """Into how many groups channels and filters are divided: a filter has the channels of one group."""

    schema = "int"
    x: str
    weight: str

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_int(name, value)
        channels, (filters, each) = given[self.x].shape[1], given[self.weight].shape[:2]
        if value < 1 or filters % value or channels != value * each:
            raise ValueError(
                f"{name} must divide {self.weight}'s {filters} filters, and be {self.x}'s {channels} channels over "
                f"{self.weight}'s {each}; got {value}"
            )

    def right(self, given: GivenArguments) -> Any:
        return given[self.x].shape[1] // given[self.weight].shape[1]

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"
        yield f"no {name}", 0, ValueError, f"{name} must divide"
        yield f"too many {name}", self.right(given) + 1, ValueError, f"{name} must divide"

    def __str__(self) -> str:
        return f"an int that divides {self.weight}'s filters, {self.x}'s channels over those of a filter"
