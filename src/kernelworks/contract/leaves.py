"""The tensors and numbers in what a program is given and returns, by where they stand in it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["items_of", "leaves", "output_tensors"]


def leaves(value: Any, path: str = "", depth: int = 0) -> dict[str, Tensor]:
    """The tensors and numbers in nested sequences, mappings, dataclasses and distributions (of torch), by path; numbers
    as tensors too.

    What is in other objects (caches that a call grew, say) is their affair.
    """
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, (bool, int, float, complex)):
        return {path: _number(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        with contextlib.suppress(TypeError, ValueError):  # of strings, or of objects
            return {path: torch.as_tensor(value, device="cpu")}
        return {}
    if depth > 16:
        return {}
    items = itertools.chain(items_of(value), _arguments_of(value))
    return {name: tensor for key, item in items for name, tensor in leaves(item, f"{path}[{key!r}]", depth + 1).items()}


def items_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a sequence, a mapping or a dataclass holds, each with its key; nothing of any other value."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))


def _arguments_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Those of a distribution."""
    if isinstance(value, torch.distributions.Distribution):
        yield from ((name, vars(value)[name]) for name in value.arg_constraints if name in vars(value))


def _number(value: complex) -> Tensor:
    """A number as a tensor in the host's memory, whatever the default device is; an integer that has no dtype (a seed,
    a hash) as its bytes."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return torch.tensor(list(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)), device="cpu")
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device="cpu")


def output_tensors(value: Any) -> dict[str, Tensor]:
    """The leaves of what a module or a program returns; of an object of another kind alone, those of its attributes."""
    return leaves(value) or leaves(getattr(value, "__dict__", None))
