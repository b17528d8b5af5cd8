"""The numbers of a pointwise op, as one more kind of argument (``arguments.py``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelworks.contract import need_64_bits
from kernelworks.contract.arguments import Arguments
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["Real", "reals"]

MOST_FLOAT32 = 3.4028234663852886e38


@dataclass(frozen=True)
class Real:
    """A number that a kernel takes in float32, there finite; ``least`` is a limit that it may reach or another number
    that it may equal, ``above`` one that it may not. ``preset`` is torch's default, None where it has none."""

    schema = "float"
    preset: float | None = None
    least: float | str | None = None
    above: float | None = None

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        need_64_bits(name, value)
        if not abs(value) <= MOST_FLOAT32:
            raise ValueError(f"{name} must be finite in float32, got {value}")
        if self.above is not None and not value > self.above:
            raise ValueError(f"{name} must be above {self.above:g}, got {value}")
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
        if self.least is not None:
            least = given[self.least] if isinstance(self.least, str) else self.least
            yield f"{name} too small", least - 1.0, ValueError, f"{name} must be at least"

    def __str__(self) -> str:
        above = "" if self.above is None else f" above {self.above:g}"
        least = "" if self.least is None else f" of at least {self._least()}"
        return f"a number{above}{least}, finite in float32"


def reals(arguments: Arguments) -> dict[str, Real]:
    """Those that are numbers of a pointwise op."""
    return {name: argument for name, argument in arguments.items() if isinstance(argument, Real)}
