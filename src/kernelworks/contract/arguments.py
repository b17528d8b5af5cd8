"""What an op's arguments may be, each said once: the check, the schema and the calls that must raise follow from it.

    ARGUMENTS = {"x": T("... K"), "weight": T("N K", like="x"), "bias": T("N", like="x", optional=True)}

Tensors are ``T`` (``tensor_argument.py``). Each kind knows its type in torch.library's schema, what it refuses and in
which words, a value that is right (together with the ``given`` ones before it) and values that are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernelworks.contract import ABSENT, need_64_bits
from kernelworks.contract.limits import IndicesOf, Limit
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong

__all__ = [
    "Argument",
    "Arguments",
    "Dim",
    "Error",
    "Flag",
    "Int64",
    "Number",
    "Word",
    "check_of",
    "errors_of",
    "limits_of",
    "need_int",
    "reduced_sizes",
    "right_of",
    "schema_of",
    "tensors",
    "words",
]  # fmt: skip

Error = tuple[str, Callable[[], dict[str, Any]], type[Exception], str]


class Argument(Protocol):
    """One kind of argument."""

    @property
    def schema(self) -> str:
        """Its type in torch.library's schema."""

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        """Raises TypeError or ValueError that names the argument, what came and what is accepted."""

    def right(self, given: GivenArguments) -> Any:
        """A value that is accepted."""

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        """Values that are not."""

    def __str__(self) -> str: ...


Arguments = Mapping[str, Argument]

# ---------------------------------------------------------------- numbers and words


def need_int(name: str, value: Any, more: str = "") -> None:
    """Raises TypeError unless ``value`` is an int; ``more`` says what else it may be."""
    if value is ABSENT:
        raise TypeError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{more}, got {type(value).__name__}")


def reduced_sizes(shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
    """The sizes of the dimensions that ``dim`` names: one, or with None all."""
    return shape if dim is None else shape[dim : dim + 1 or None]


@dataclass(frozen=True)
class Dim:
    """One of another's dimensions; with ``every`` also None for all, and a scalar then has one, as torch counts, as it
    has with ``scalar``. Unless it may be ``empty``, there must be something to choose from."""

    of: str
    every: bool = False
    empty: bool = True
    scalar: bool = False

    @property
    def schema(self) -> str:
        return "int?" if self.every else "int"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        shape = tuple(given[self.of].shape)
        dims = max(len(shape), int(self.every or self.scalar))
        if value is not None or not self.every:
            need_int(name, value, " or None" * self.every)
            if not -dims <= value < dims:
                raise ValueError(f"{name} must be in [{-dims}, {dims - 1}] for {self.of} of {list(shape)}, got {value}")
        if not self.empty and 0 in reduced_sizes(shape, value):
            raise ValueError(f"{name} must have elements to reduce, got {value} for {self.of} of {list(shape)}")

    def right(self, given: GivenArguments) -> Any:
        return -1

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        dims = len(given[self.of].shape)
        yield f"{name} too large", dims, ValueError, f"{name} must be in [{-dims}, {dims - 1}]"
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"

    def __str__(self) -> str:
        some = "" if self.empty else ", which must have elements"
        return f"a dimension of {self.of}, also counted from the end{', or None for all' * self.every}{some}"


@dataclass(frozen=True)
class Int64:
    """An int of 64 bits, of at least ``least``; also None if it is ``optional``."""

    least: int = -(2**63)
    optional: bool = False

    @property
    def schema(self) -> str:
        return "int?" if self.optional else "int"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None and self.optional:
            return
        need_int(name, value, " or None" * self.optional)
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} must fit into 64 bits, got {value}")
        if value < self.least:
            raise ValueError(f"{name} must be at least {self.least}, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return None if self.optional else max(self.least, -100)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must fit into 64 bits"
        if self.least > -(2**63):
            yield f"{name} too small", self.least - 1, ValueError, f"{name} must be at least {self.least}"

    def __str__(self) -> str:
        least = f" of at least {self.least}" * (self.least > -(2**63))
        return f"an int of 64 bits{least}" + ", or None" * self.optional


@dataclass(frozen=True)
class Number:
    """A number of at least ``least``, or above ``above``, and ``below``; finite if it must be; also None if it is
    ``optional``. One that is not has no default: an eps, of which frameworks disagree."""

    least: float | None = 0.0
    above: float | None = None
    below: float | None = None
    finite: bool = False
    optional: bool = False

    @property
    def schema(self) -> str:
        return "float?" if self.optional else "float"

    def _holds(self, value: float) -> bool:
        return not (
            (self.least is not None and not value >= self.least)
            or (self.above is not None and not value > self.above)
            or (self.below is not None and not value < self.below)
            or (self.finite and not math.isfinite(value))
        )

    @property
    def _limits(self) -> str:
        limits = (("at least", self.least), ("above", self.above), ("below", self.below))
        said = [f"{word} {limit:g}" for word, limit in limits if limit is not None]
        return " and ".join(said + ["finite"] * self.finite) or "a number"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None and self.optional:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            none = " or None" * self.optional
            raise TypeError(f"{name} must be a float{none}, got {type(value).__name__}")
        need_64_bits(name, value)
        if not self._holds(value):
            raise ValueError(f"{name} must be {self._limits}, got {value}")

    def right(self, given: GivenArguments) -> Any:
        if self.optional:
            return None
        return next(n for n in (1e-5, 0.5, 1.0, 2.0, -1.0) if self._holds(n))

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a string", "1", TypeError, f"{name} must be a float"
        yield f"{name} is True", True, TypeError, f"{name} must be a float"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must fit into 64 bits"
        limits = f"{name} must be {self._limits}"
        for value in (-1.0, self.above, self.below, math.inf, math.nan):
            if value is not None and not self._holds(value):
                yield f"{name} is {value}", value, ValueError, limits

    def __str__(self) -> str:
        return f"a number {self._limits}" + ", or None" * self.optional


@dataclass(frozen=True)
class Flag:
    """True or False."""

    schema = "bool"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool, got {type(value).__name__}")

    def right(self, given: GivenArguments) -> Any:
        return False

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a number", 1, TypeError, f"{name} must be a bool"

    def __str__(self) -> str:
        return "True or False"


@dataclass(frozen=True, init=False)
class Word:
    """One of a few words, each of which says which function is meant; or None, if it is ``optional``, which says one
    too."""

    words: tuple[str, ...]
    optional: bool

    def __init__(self, *words: str, optional: bool = False) -> None:
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "optional", optional)

    @property
    def schema(self) -> str:
        return "str?" if self.optional else "str"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None and self.optional:
            return
        if not isinstance(value, str):
            none = " or None" * self.optional
            raise TypeError(f"{name} must be a str{none}, got {type(value).__name__}")
        if value not in self.words:
            raise ValueError(f"{name} must be {self}, got {value!r}")

    def right(self, given: GivenArguments) -> Any:
        return None if self.optional else self.words[0]

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is not a string", True, TypeError, f"{name} must be a str"
        yield f"{name} is no word that is known", "unheard of", ValueError, f"{name} must be {self}"

    def __str__(self) -> str:
        return " or ".join([*(repr(word) for word in self.words), *(["None"] if self.optional else [])])


# ---------------------------------------------------------------- what follows


def check_of(arguments: Arguments, defaults: Mapping[str, Any] | None = None) -> Callable[..., None]:
    """The contract's ``check``: every argument in turn, with a default if the call does not give it."""
    before: Mapping[str, Any] = defaults or {}
    kinds = tuple(arguments.items())

    def check(**call: Any) -> None:
        given = GivenArguments({**before, **call} if before else call)
        for name, argument in kinds:
            argument.check(name, given.get(name, ABSENT), given)

    return check


def right_of(arguments: Arguments, **chosen: Any) -> GivenArguments:
    """A call that is accepted, with the arguments that are ``chosen``."""
    right = GivenArguments(chosen)
    for name, argument in arguments.items():
        right[name] = chosen[name] if name in chosen else argument.right(right)
        argument.check(name, right[name], right)
    return right


def errors_of(arguments: Arguments, **chosen: Any) -> tuple[Error, ...]:
    """The contract's ``errors``: every argument wrong in each way, the others right, some as they are ``chosen``."""
    right = right_of(arguments, **chosen)

    def call(name: str, value: Any) -> Callable[[], dict[str, Any]]:
        return lambda: {**right, name: value}

    return tuple(
        (what, call(name, value), kind, text)
        for name, argument in arguments.items()
        for what, value, kind, text in argument.wrong(name, right)
    )


def schema_of(arguments: Arguments) -> str:
    """The arguments in torch.library's schema."""
    return ", ".join(f"{argument.schema} {name}" for name, argument in arguments.items())


def limits_of(arguments: Arguments) -> dict[str, Limit]:
    """The contract's ``limits``: of each tensor of indices the tensor that they point into, and its dimension."""
    limits: dict[str, Limit] = {}
    for name, argument in arguments.items():
        if isinstance(argument, T) and argument.index_of:
            for other, kind in arguments.items():
                words = [d.name for d in kind.dimensions] if isinstance(kind, T) else []
                if argument.index_of in words and name not in limits:
                    at = words.index(argument.index_of)
                    limits[name] = IndicesOf(other, at - len(words) if "..." in words[:at] else at)
    return limits


def tensors(arguments: Arguments) -> tuple[str, ...]:
    """The names of those that are tensors."""
    return tuple(name for name, argument in arguments.items() if argument.schema.startswith("Tensor"))


def words(arguments: Arguments) -> Mapping[str, tuple[str, ...]]:
    """The names of those that are words, and which."""
    return {name: argument.words for name, argument in arguments.items() if isinstance(argument, Word)}
