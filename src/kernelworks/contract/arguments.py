"""What an op's arguments may be, each said once: the check, the schema and the calls that must raise follow from it.

    ARGUMENTS = {"x": Floats(least=1), "weight": Matrix("x"), "bias": Vector("weight", 0)}

Each kind knows its type in torch.library's schema, what it refuses and in which words, a value that is right (together
with the ``given`` ones before it) and values that are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernelworks.contract import ABSENT, FLOATS, need_64_bits, need_dtype, need_same, need_tensor

__all__ = [
    "SHAPE",
    "Argument",
    "Arguments",
    "Classes",
    "Dim",
    "Error",
    "Flag",
    "Floats",
    "GivenArguments",
    "Int64",
    "Like",
    "Lines",
    "MatmulOutput",
    "Matrix",
    "Number",
    "Vector",
    "Word",
    "Wrong",
    "check_of",
    "errors_of",
    "need_int",
    "reduced_sizes",
    "right_of",
    "schema_of",
    "tensors",
    "words",
]  # fmt: skip

GivenArguments = Mapping[str, Any]
Wrong = tuple[str, Any, type[Exception], str]  # what is wrong with a value, the value, what it raises, with which words
Error = tuple[str, Callable[[], dict[str, Any]], type[Exception], str]
SHAPE = (2, 8)  # of the tensors in calls that must raise
ROWS = 3  # of the matrices there


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

# ---------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Floats:
    """A floating-point tensor of any strides and at least so many dimensions; ``which`` says what the last is for."""

    schema = "Tensor"
    dtypes: tuple[torch.dtype, ...] = FLOATS
    least: int = 0
    which: str = ""

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_dtype(name, value, self.dtypes)
        if len(value.shape) < self.least:
            raise ValueError(f"{name} must have at least one dimension{self.which}; got a scalar tensor")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(SHAPE)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is not a tensor", [1.0], TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        for which, dtype in (("an integer", torch.int64), ("a float64", torch.float64)):
            yield f"{name} is {which} tensor", torch.ones(SHAPE, dtype=dtype), TypeError, f"{name} must have dtype"
        if self.least:
            yield f"{name} is a scalar tensor", torch.ones(()), ValueError, f"{name} must have at least one dimension"

    def __str__(self) -> str:
        shape = "at least one dimension" if self.least else "any shape"
        return f"a tensor of {shape}, any strides, " + ", ".join(str(d).removeprefix("torch.") for d in self.dtypes)


@dataclass(frozen=True)
class Like:
    """A tensor of another's shape, dtype and device, any strides; None too where it is ``optional``."""

    other: str
    optional: bool = False

    @property
    def schema(self) -> str:
        return "Tensor?" if self.optional else "Tensor"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value, optional=self.optional)
        if value is None:
            return
        other = given[self.other]
        need_same(name, value, self.other, other)
        if tuple(value.shape) != tuple(other.shape):
            raise ValueError(f"{name} must have {self.other}'s shape {list(other.shape)}, got {list(value.shape)}")

    def right(self, given: GivenArguments) -> Any:
        return None if self.optional else torch.ones(given[self.other].shape)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        other, shape = f"{name} must have {self.other}'s", given[self.other].shape
        if not self.optional:
            yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of another dtype", torch.ones(shape).half(), TypeError, f"{other} dtype"
        yield f"{name} of another shape", torch.ones(shape[1:]), ValueError, f"{other} shape {list(shape)}"

    def __str__(self) -> str:
        return f"a tensor of {self.other}'s shape, dtype and device, any strides" + ", or None" * self.optional


@dataclass(frozen=True)
class Vector:
    """A number for each element of a dimension of another's, its first (0) or its last (-1); or None."""

    schema = "Tensor?"
    of: str
    dim: int = -1

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value, optional=True)
        if value is None:
            return
        other = given[self.of]
        need_same(name, value, self.of, other)
        size = other.shape[self.dim]
        if tuple(value.shape) != (size,):
            raise ValueError(f"{name} must have shape [{size}], {self._which}; got {list(value.shape)}")

    @property
    def _which(self) -> str:
        return f"{self.of}'s {'last' if self.dim else 'first'} dimension"

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(given[self.of].shape[self.dim])

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        shape = f"{name} must have shape {list(right.shape)}"
        yield f"{name} is a number", 1.0, TypeError, f"{name} must be a torch.Tensor or None"
        yield f"{name} of another length", torch.ones(len(right) - 1), ValueError, shape
        yield f"{name} of two dimensions", torch.ones(1, len(right)), ValueError, shape
        yield f"{name} of another dtype", right.half(), TypeError, f"{name} must have {self.of}'s dtype"

    def __str__(self) -> str:
        return f"a vector as long as {self._which}, of its dtype, or None"


@dataclass(frozen=True)
class Matrix:
    """[N, K] of another's dtype, whose last dimension is K long; at least so many N, where the other has rows."""

    schema = "Tensor"
    other: str
    least: int = 0

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        other = given[self.other]
        need_tensor(name, value)
        need_same(name, value, self.other, other)
        k = other.shape[-1]
        least = self.least if math.prod(other.shape[:-1]) else 0
        if len(value.shape) != 2 or value.shape[1] != k or value.shape[0] < least:
            some = f" with N >= {self.least}" if self.least else ""
            last = f"K {self.other}'s last dimension"
            raise ValueError(f"{name} must have shape [N, {k}]{some}, {last}; got {list(value.shape)}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(ROWS, given[self.other].shape[-1])

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        k = given[self.other].shape[-1]
        shape, dtype = f"{name} must have shape [N, {k}]", f"{name} must have {self.other}'s dtype"
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of another K", torch.ones(ROWS, k - 1), ValueError, shape
        yield f"{name} of one dimension", torch.ones(k), ValueError, shape
        yield f"{name} of another dtype", torch.ones(ROWS, k).half(), TypeError, dtype
        if self.least:
            yield f"{name} without rows", torch.ones(0, k), ValueError, f"with N >= {self.least}"

    def __str__(self) -> str:
        return f"[N, K] of {self.other}'s dtype, K its last dimension, any strides"


@dataclass(frozen=True)
class MatmulOutput:
    """A tensor of the shape of ``x weight^T``, x's dtype and device, any strides."""

    schema = "Tensor"
    x: str
    weight: str

    def _shape(self, given: GivenArguments) -> list[int]:
        return [*given[self.x].shape[:-1], given[self.weight].shape[0]]

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_same(name, value, self.x, given[self.x])
        shape = self._shape(given)
        if list(value.shape) != shape:
            raise ValueError(f"{name} must have the result's shape {shape}, got {list(value.shape)}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(self._shape(given))

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of another dtype", right.half(), TypeError, f"{name} must have {self.x}'s dtype"
        yield f"{name} of another shape", right[1:], ValueError, f"{name} must have the result's shape"

    def __str__(self) -> str:
        return f"a tensor of the shape of {self.x} {self.weight}^T, of its dtype and device, any strides"


@dataclass(frozen=True)
class Lines:
    """A floating-point tensor of two dimensions, the second with at least one element where the first has any."""

    schema = "Tensor"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        Floats().check(name, value, given)
        if len(value.shape) != 2 or value.shape[1] < (1 if value.shape[0] else 0):
            raise ValueError(f"{name} must have shape [M, N] with N >= 1, got {list(value.shape)}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(SHAPE)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield from Floats().wrong(name, given)
        yield f"{name} of three dimensions", torch.ones(*SHAPE, 1), ValueError, f"{name} must have shape [M, N]"
        yield f"{name} without columns", torch.ones(SHAPE[0], 0), ValueError, "with N >= 1"

    def __str__(self) -> str:
        return "[M, N] with N >= 1, any strides"


@dataclass(frozen=True)
class Classes:
    """The number of a class for each row of another, int64."""

    schema = "Tensor"
    of: str

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        other = given[self.of]
        need_tensor(name, value)
        need_dtype(name, value, (torch.int64,))
        rows = list(other.shape[:-1])
        if list(value.shape) != rows:
            raise ValueError(f"{name} must have shape {rows}, one class a row; got {list(value.shape)}")
        if torch.device(value.device).type != torch.device(other.device).type:
            raise ValueError(f"{name} must be on {self.of}'s device {other.device}, got {value.device}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(given[self.of].shape[:-1], dtype=torch.int64)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield f"{name} of another length", right[1:], ValueError, f"{name} must have shape {list(right.shape)}"
        yield f"{name} of int32", right.int(), TypeError, f"{name} must have dtype int64"

    def __str__(self) -> str:
        return f"int64, one class for each row of {self.of}"


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
    """An int of 64 bits."""

    schema = "int"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_int(name, value)
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} must fit into 64 bits, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return -100

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a float", 1.0, TypeError, f"{name} must be an int"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must fit into 64 bits"

    def __str__(self) -> str:
        return "an int of 64 bits"


@dataclass(frozen=True)
class Number:
    """A number that is not negative, without a default: an eps, of which frameworks disagree."""

    schema = "float"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        need_64_bits(name, value)
        if not value >= 0.0:
            raise ValueError(f"{name} must be at least 0, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return 1e-5

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"negative {name}", -1.0, ValueError, f"{name} must be at least 0"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must fit into 64 bits"

    def __str__(self) -> str:
        return "a number of at least 0"


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
    """One of a few words, each of which says which function is meant."""

    schema = "str"
    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        if value not in self.words:
            raise ValueError(f"{name} must be {self}, got {value!r}")

    def right(self, given: GivenArguments) -> Any:
        return self.words[0]

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is not a string", True, TypeError, f"{name} must be a str"
        yield f"{name} is no word that is known", "unheard of", ValueError, f"{name} must be {self}"

    def __str__(self) -> str:
        return " or ".join(repr(word) for word in self.words)


# ---------------------------------------------------------------- what follows


def check_of(arguments: Arguments) -> Callable[..., None]:
    """The contract's ``check``: every argument in turn."""

    def check(**given: Any) -> None:
        for name, argument in arguments.items():
            argument.check(name, given.get(name, ABSENT), given)

    return check


def right_of(arguments: Arguments) -> dict[str, Any]:
    """A call that is accepted."""
    right: dict[str, Any] = {}
    for name, argument in arguments.items():
        right[name] = argument.right(right)
    return right


def errors_of(arguments: Arguments) -> tuple[Error, ...]:
    """The contract's ``errors``: every argument wrong in each way, the others right."""
    right = right_of(arguments)

    def call(name: str, value: Any) -> Callable[[], dict[str, Any]]:
        return lambda: right | {name: value}

    return tuple(
        (what, call(name, value), kind, text)
        for name, argument in arguments.items()
        for what, value, kind, text in argument.wrong(name, right)
    )


def schema_of(arguments: Arguments) -> str:
    """The arguments in torch.library's schema."""
    return ", ".join(f"{argument.schema} {name}" for name, argument in arguments.items())


def tensors(arguments: Arguments) -> tuple[str, ...]:
    """The names of those that are tensors."""
    return tuple(name for name, argument in arguments.items() if argument.schema.startswith("Tensor"))


def words(arguments: Arguments) -> Mapping[str, tuple[str, ...]]:
    """The names of those that are words, and which."""
    return {name: argument.words for name, argument in arguments.items() if isinstance(argument, Word)}
