"""What an op's arguments may be, each said once: the check, the schema and the calls that must raise follow from it.

    ARGUMENTS = {"gate": Floats(), "up": Like("gate")}

Each kind knows its type in torch.library's schema, what it refuses and in which words, a value that is right (together
with the ``given`` ones before it) and values that are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernelworks.contract import ABSENT, FLOATS, need_dtype, need_same, need_tensor

__all__ = ["Argument", "Arguments", "Floats", "Like", "Word", "check_of", "errors_of", "said", "tensors", "words"]

Wrong = tuple[str, Any, type[Exception], str]  # what is wrong with a value, the value, what it raises, with which words
Error = tuple[str, Callable[[], dict[str, Any]], type[Exception], str]
SHAPE = (2, 8)  # of the tensors in calls that must raise


class Argument(Protocol):
    """One kind of argument."""

    @property
    def schema(self) -> str:
        """Its type in torch.library's schema."""

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        """Raises TypeError or ValueError that names the argument, what came and what is accepted."""

    def right(self) -> Any:
        """A value that is accepted."""

    def wrong(self, name: str) -> Iterator[Wrong]:
        """Values that are not."""

    def __str__(self) -> str: ...


Arguments = Mapping[str, Argument]


@dataclass(frozen=True)
class Floats:
    """A floating-point tensor of any shape and strides."""

    schema = "Tensor"
    dtypes: tuple[torch.dtype, ...] = FLOATS

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        need_tensor(name, value)
        need_dtype(name, value, self.dtypes)

    def right(self) -> Any:
        return torch.ones(SHAPE)

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield f"{name} is not a tensor", 1.0, TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        for which, dtype in (("an integer", torch.int64), ("a float64", torch.float64)):
            yield f"{name} is {which} tensor", torch.ones(SHAPE, dtype=dtype), TypeError, f"{name} must have dtype"

    def __str__(self) -> str:
        return "a tensor of any shape and strides, " + ", ".join(str(d).removeprefix("torch.") for d in self.dtypes)


@dataclass(frozen=True)
class Like:
    """A tensor of another's shape, dtype and device, any strides."""

    schema = "Tensor"
    other: str

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        other = given[self.other]
        need_tensor(name, value)
        need_same(name, value, self.other, other)
        if tuple(value.shape) != tuple(other.shape):
            raise ValueError(f"{name} must have {self.other}'s shape {list(other.shape)}, got {list(value.shape)}")

    def right(self) -> Any:
        return torch.ones(SHAPE)

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield f"{name} is None", None, TypeError, f"{name} must be a torch.Tensor"
        other = f"{name} must have {self.other}'s"
        yield f"{name} of another dtype", torch.ones(SHAPE).half(), TypeError, f"{other} dtype"
        yield f"{name} of another shape", torch.ones(SHAPE[1:]), ValueError, f"{other} shape {list(SHAPE)}"

    def __str__(self) -> str:
        return f"a tensor of {self.other}'s shape, dtype and device, any strides"


@dataclass(frozen=True, init=False)
class Word:
    """One of a few words, each of which says which function is meant."""

    schema = "str"
    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def check(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        if value not in self.words:
            raise ValueError(f"{name} must be {self}, got {value!r}")

    def right(self) -> Any:
        return self.words[0]

    def wrong(self, name: str) -> Iterator[Wrong]:
        yield f"{name} is not a string", True, TypeError, f"{name} must be a str"
        yield f"{name} is no word that is known", "unheard of", ValueError, f"{name} must be {self}"

    def __str__(self) -> str:
        return " or ".join(repr(word) for word in self.words)


def check_of(arguments: Arguments) -> Callable[..., None]:
    """The contract's ``check``: every argument in turn."""

    def check(**given: Any) -> None:
        for name, argument in arguments.items():
            argument.check(name, given.get(name, ABSENT), given)

    return check


def errors_of(arguments: Arguments) -> tuple[Error, ...]:
    """The contract's ``errors``: every argument wrong in each way, the others right."""

    def call(name: str, value: Any) -> Callable[[], dict[str, Any]]:
        return lambda: {n: argument.right() for n, argument in arguments.items()} | {name: value}

    return tuple(
        (what, call(name, value), kind, text)
        for name, argument in arguments.items()
        for what, value, kind, text in argument.wrong(name)
    )


def said(arguments: Arguments) -> str:
    """The arguments in torch.library's schema."""
    return ", ".join(f"{argument.schema} {name}" for name, argument in arguments.items())


def tensors(arguments: Arguments) -> tuple[str, ...]:
    """The names of those that are tensors."""
    return tuple(name for name, argument in arguments.items() if argument.schema.startswith("Tensor"))


def words(arguments: Arguments) -> Mapping[str, tuple[str, ...]]:
    """The names of those that are words, and which."""
    return {name: argument.words for name, argument in arguments.items() if isinstance(argument, Word)}
