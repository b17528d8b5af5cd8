"""The arguments of transforms along a dimension, as more kinds of arguments (``arguments.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract import need_dtype, need_tensor
from kernelworks.contract.arguments import SHAPE, GivenArguments, Wrong, need_int

__all__ = ["Length", "Norm", "Signal"]


@dataclass(frozen=True)
class Signal:
    """A tensor of one dtype, real or complex, and at least one dimension; any strides."""

    schema = "Tensor"
    dtype: torch.dtype

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_dtype(name, value, (self.dtype,))
        if not len(value.shape):
            raise ValueError(f"{name} must have at least one dimension; got a scalar tensor")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(SHAPE, dtype=self.dtype)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        other = torch.float32 if self.dtype.is_complex else torch.complex64
        yield f"{name} is not a tensor", [1.0], TypeError, f"{name} must be a torch.Tensor"
        for dtype in (other, torch.float64, torch.complex128, torch.int64):
            which = str(dtype).removeprefix("torch.")
            yield f"{name} is {which}", torch.ones(SHAPE, dtype=dtype), TypeError, f"{name} must have dtype"
        scalar = torch.ones((), dtype=self.dtype)
        yield f"{name} is a scalar tensor", scalar, ValueError, f"{name} must have at least one dimension"

    def __str__(self) -> str:
        return f"a tensor of at least one dimension, any strides, {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Length:
    """How many numbers of a line meet, at least 1; None for as many as the line has."""

    schema = "int?"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None:
            return
        need_int(name, value, " or None")
        if not 1 <= value < 2**63:
            raise ValueError(f"{name} must be at least 1 and fit into 64 bits, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return None

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a float", 8.0, TypeError, f"{name} must be an int or None"
        yield f"{name} is True", True, TypeError, f"{name} must be an int or None"
        yield f"{name} is 0", 0, ValueError, f"{name} must be at least 1"
        yield f"{name} of 65 bits", 2**64, ValueError, f"{name} must be at least 1 and fit into 64 bits"

    def __str__(self) -> str:
        return "an int of at least 1, or None for as many as there are"


@dataclass(frozen=True)
class Norm:
    """How a transform is scaled, in torch's words; None for "backward"."""

    schema = "str?"
    words = ("backward", "ortho", "forward")

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} must be a str or None, got {type(value).__name__}")
        if value is not None and value not in self.words:
            raise ValueError(f"{name} must be {self}, got {value!r}")

    def right(self, given: GivenArguments) -> Any:
        return None

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is no string", 1, TypeError, f"{name} must be a str or None"
        yield f"{name} is no word that is known", "unheard of", ValueError, f"{name} must be"

    def __str__(self) -> str:
        return ", ".join(repr(word) for word in self.words) + " or None"
