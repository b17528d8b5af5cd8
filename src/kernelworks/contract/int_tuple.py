"""A kind of argument of what slides over lines, pictures and volumes: one int, or one for each dimension."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelworks.contract.arguments import need_int
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["IntTuple", "ints"]

Ints = tuple[int, ...]
WORDS = {1: "an int or a list of one", 2: "an int or a pair of ints", 3: "an int or three ints"}


def ints(value: Any, count: int) -> Ints:
    """The ``count`` ints that one int, or a list of one or of all, stands for."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(int(value[i if len(value) > 1 else 0]) for i in range(count))


@dataclass(frozen=True)
class IntTuple:
    """An int for all of ``count`` dimensions, or one for each, at least ``least``; also None if it is ``optional``."""

    count: int
    least: int = 0
    usual: int = 1
    optional: bool = False

    @property
    def schema(self) -> str:
        return f"int[{self.count}]" + "?" * self.optional

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None and self.optional:
            return
        several = isinstance(value, (list, tuple))
        if several and len(value) not in (1, self.count):
            raise ValueError(f"{name} must be {WORDS[self.count]}, got {len(value)} of them")
        for item in value if several else (value,):
            need_int(name, item, WORDS[self.count].removeprefix("an int"))
            if item < self.least:
                raise ValueError(f"{name} must be at least {self.least}, got {value}")
            if item >= 2**31:
                raise ValueError(f"{name} must be below 2^31, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return self.usual

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        words = f"{name} must be {WORDS[self.count]}"
        yield f"{name} is a float", 1.0, TypeError, words
        yield f"{name} is a bool", True, TypeError, words
        yield f"{name} holds a float", (1.0,) * self.count, TypeError, words
        yield f"{name} of too many", (1,) * (self.count + 1), ValueError, f"{words}, got {self.count + 1}"
        yield f"{name} too small", self.least - 1, ValueError, f"{name} must be at least {self.least}"
        last = [self.usual] * (self.count - 1) + [self.least - 1]
        yield f"{name} too small in one", last, ValueError, f"{name} must be at least {self.least}"
        yield f"{name} of 32 bits", 2**31, ValueError, f"{name} must be below 2^31"

    def __str__(self) -> str:
        return f"{WORDS[self.count]} of at least {self.least}" + ", or None" * self.optional
