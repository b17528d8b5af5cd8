"""Numbers that a kernel takes in float32, and counts, as more kinds of argument (``arguments.py``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelworks.contract import need_64_bits
from kernelworks.contract.arguments import Arguments, need_int
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["MOST_FLOAT32", "Ordinal", "Real", "is_middle", "reals"]

MOST_FLOAT32 = 3.4028234663852886e38


def is_middle(number: Any) -> bool:
    """Whether a kernel may take a number in float32: no product on the way leaves its range, if no value is huge."""
    return isinstance(number, (int, float)) and (number == 0.0 or 2.0**-100 <= abs(number) <= 2.0**15)


@dataclass(frozen=True)
class Real:
    """A number that a kernel takes in float32, there finite; ``least`` is a limit that it may reach or another number
    that it may equal, ``above`` and ``below`` are such as it may not. ``preset`` is torch's default, None where it has
    none."""

    schema = "float"
    preset: float | None = None
    least: float | str | None = None
    above: float | None = None
    below: float | None = None

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        need_64_bits(name, value)
        if not abs(value) <= MOST_FLOAT32:
            raise ValueError(f"{name} must be finite in float32, got {value}")
        if self.above is not None and not value > self.above:
            raise ValueError(f"{name} must be above {self.above:g}, got {value}")
        if self.below is not None and not value < self.below:
            raise ValueError(f"{name} must be below {self.below:g}, got {value}")
        if self.least is not None:
            least = given[self.least] if isinstance(self.least, str) else self.least
            if not value >= least:
                raise ValueError(f"{name} must be at least {self._least()}, got {value}")

    def _least(self) -> str:
        return self.least if isinstance(self.least, str) else f"{self.least:g}"

    def conditions(self, name: str) -> list[str]:
        """What holds of a number that the check accepts, as expressions."""
        said = [f"{name}.__class__ is float and abs({name}) <= {MOST_FLOAT32!r}"]
        said += [f"{name} > {self.above!r}"] if self.above is not None else []
        said += [f"{name} < {self.below!r}"] if self.below is not None else []
        return said + ([f"{name} >= {self.least}"] if self.least is not None else [])

    def right(self, given: GivenArguments) -> Any:
        return 1.0 if self.preset is None else self.preset

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a string", "1", TypeError, f"{name} must be a float"
        yield f"{name} is True", True, TypeError, f"{name} must be a float"
        yield f"{name} is infinite", math.inf, ValueError, f"{name} must be finite in float32"
        yield f"{name} is NaN", math.nan, ValueError, f"{name} must be finite in float32"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must fit into 64 bits"
        if self.above is not None:
            yield f"{name} too small", self.above, ValueError, f"{name} must be above"
        if self.below is not None:
            yield f"{name} too large", self.below, ValueError, f"{name} must be below"
        if self.least is not None:
            least = given[self.least] if isinstance(self.least, str) else self.least
            yield f"{name} too small", least - 1.0, ValueError, f"{name} must be at least"

    def __str__(self) -> str:
        above = "" if self.above is None else f" above {self.above:g}"
        least = "" if self.least is None else f" of at least {self._least()}"
        below = "" if self.below is None else f" below {self.below:g}"
        return f"a number{above}{least}{below}, finite in float32"


@dataclass(frozen=True)
class Ordinal:
    """Which of several in a row, from 1: an int of 64 bits."""

    schema = "int"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_int(name, value)
        if not 1 <= value < 2**63:
            raise ValueError(f"{name} must be at least 1 and fit into 64 bits, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return 1

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is 0", 0, ValueError, f"{name} must be at least 1"
        yield f"{name} is a float", 1.5, TypeError, f"{name} must be an int"
        yield f"{name} is True", True, TypeError, f"{name} must be an int"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must be at least 1 and fit into 64 bits"

    def __str__(self) -> str:
        return "an int of at least 1"


def reals(arguments: Arguments) -> dict[str, Real]:
    """Those that are numbers of a pointwise op."""
    return {name: argument for name, argument in arguments.items() if isinstance(argument, Real)}
