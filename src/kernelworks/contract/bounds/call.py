"""One call of an aten op, as the rules see it: operands in float64, and a way to run it on others in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.bounds.error import Error
from kernelworks.contract.bounds.shadows import Shadows

__all__ = ["Call", "NoBoundError", "Result", "inner", "unit", "words"]


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class NoBoundError(Exception):
    """No bound can be derived; the text says of which op, and why."""


@dataclass(frozen=True)
class Result:
    """One output: its float64 value and error (None: exact). ``value`` None: as the native run has it, exactly.
    ``unsure``: of integers and truth values, where rounding decides."""

    value: Tensor | None
    error: Error | None = None
    unsure: Tensor | None = None


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff that bounds are derived with. Of float64 twice its own: the reference rounds as candidates
    do."""
    if dtype is torch.float64:
        return 2 * UNIT_ROUNDOFF[dtype]
    found = UNIT_ROUNDOFF.get(dtype)
    return found if found is not None else float(torch.finfo(dtype).eps) / 2


def inner(dtype: torch.dtype) -> float:
    """The unit roundoff inside a sum: float32's for narrower dtypes too."""
    return min(unit(dtype), UNIT_ROUNDOFF[torch.float32])


class Call:
    """``leaves`` are the arguments, flattened; ``floats`` the places of floating-point tensors among them, ``wholes``
    those of integers and truth values."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shadows: Shadows) -> None:
        self.func = func
        self.packet = func.overloadpacket
        name = self.packet.__name__
        self.in_place = name.endswith("_") and not name.endswith("__")
        self.name = name[:-1] if self.in_place else name
        self.given, self.tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self.leaves = [shadows.value(leaf) if isinstance(leaf, Tensor) else _wide(leaf) for leaf in self.given]
        at = [i for i, leaf in enumerate(self.given) if isinstance(leaf, Tensor)]
        self.floats = [i for i in at if self.given[i].dtype.is_floating_point]
        self.wholes = [i for i in at if i not in self.floats]
        self.errors = {i: e for i in self.floats if (e := shadows.error(self.given[i])) is not None}
        self.terms = {i: k for i in self.floats if (k := shadows.terms(self.given[i]))}  # of those that are sums
        self.unsure = {i: m for i in self.wholes if (m := shadows.unsure(self.given[i])) is not None}

    @property
    def dtype(self) -> torch.dtype:
        """Of the first floating-point operand."""
        return self.given[self.floats[0]].dtype if self.floats else torch.get_default_dtype()

    @property
    def args(self) -> tuple[Any, ...]:
        return self.with_({})[0]

    def argument(self, name: str, default: Any = None) -> Any:
        """By its name in torch's schema, widened."""
        args, kwargs = self.with_({})
        if name in kwargs:
            return kwargs[name]
        for i, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return args[i] if i < len(args) else argument.default_value if argument.has_default_value() else default
        return default

    def with_(self, others: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [others.get(i, leaf) for i, leaf in enumerate(self.leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return args, {key: value for key, value in kwargs.items() if key != "out"}

    def run(self, others: Mapping[int, Any] | None = None) -> Any:
        """The op, not in place, on the float64 operands but for ``others`` by their places."""
        args, kwargs = self.with_(others or {})
        op: Callable[..., Any] = getattr(torch.ops.aten, self.name)
        return op(*args, **kwargs)

    def scalars(self) -> list[float]:
        """Numbers among the arguments that float32 cannot hold."""
        found = [leaf for leaf in self.given if isinstance(leaf, float) and math.isfinite(leaf)]
        return [leaf for leaf in found if leaf != torch.tensor(leaf, dtype=torch.float32).item()]

    def label(self, terms: int = 0) -> str:
        return f"{self.name} K={terms}" if terms else self.name


def _wide(leaf: Any) -> Any:
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
