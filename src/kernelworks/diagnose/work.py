"""What a call cannot do without: arithmetic, elementary functions, each byte in and out once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.diagnose.trace import Call

__all__ = ["NOTHING", "Arguments", "Operand", "Work", "broadcast", "distinct"]


@dataclass(frozen=True)
class Work:
    """The least that a call must do. ``function`` names the elementary function. ``dtype`` decides the unit: a
    product's own dtype, float32 for all else, since dot-product units do nothing else."""

    flop: float = 0.0
    transcendental: float = 0.0
    read: float = 0.0  # bytes
    written: float = 0.0
    dtype: str = "float32"
    function: str = "exp"

    def __add__(self, other: Work) -> Work:
        busier = self if (self.flop, self.transcendental) >= (other.flop, other.transcendental) else other
        return Work(
            self.flop + other.flop,
            self.transcendental + other.transcendental,
            self.read + other.read,
            self.written + other.written,
            busier.dtype,
            (self if self.transcendental >= other.transcendental else other).function,
        )


NOTHING = Work()


@dataclass(frozen=True)
class Operand:
    """A tensor argument without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of distinct elements: an expanded dimension is read once."""
        return distinct(self.shape, self.stride) * self.dtype.itemsize


def distinct(shape: Sequence[int], stride: Sequence[int]) -> int:
    if len(stride) != len(shape):
        return math.prod(shape)
    return math.prod(1 if step == 0 and size else size for size, step in zip(shape, stride, strict=True))


def broadcast(operands: Iterable[Operand]) -> tuple[int, ...]:
    """The shape that the operands have together."""
    return tuple(torch.broadcast_shapes(*(o.shape for o in operands)))  # type: ignore[no-untyped-call]


class Arguments:
    """A call's arguments as the formulas want them: ``[i]`` an Operand, a list of them, a number, a list, or None."""

    def __init__(self, call: Call) -> None:
        call.load()
        self.name = call.name.removeprefix("aten::")
        self.call = call
        self.items = [self._item(i) for i in range(len(call.dtypes))]
        if call.overload == "out" and self.items and isinstance(self.items[-1], Operand):
            self.items.pop()  # the output is written, not read; every formula counts that itself

    def _item(self, i: int) -> Any:
        call = self.call
        dtype, shape = call.dtypes[i], call.shapes[i] if i < len(call.shapes) else []
        stride = call.strides[i] if i < len(call.strides) else []
        if dtype is not None:
            return Operand(tuple(shape), tuple(stride), dtype)
        if shape and isinstance(shape[0], list):  # a list of tensors: the profiler does not tell their dtype
            return [Operand(tuple(s), tuple(t), self._list_dtype()) for s, t in zip(shape, stride, strict=False)]
        return call.scalars[i] if i < len(call.scalars) else None

    def _list_dtype(self) -> torch.dtype:
        """The dtype of a list of tensors; where nothing told it, that of the first tensor in or below the call that has
        one."""
        if self.call.listed is not None:
            return self.call.listed
        waiting = [self.call]
        while waiting:
            call = waiting.pop(0).load()
            known = next((d for d in call.dtypes if d is not None), None)
            if known is not None:
                return known
            waiting.extend(call.children)
        return torch.float32

    def __getitem__(self, i: int) -> Any:
        return self.items[i] if i < len(self.items) else None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def operands(self) -> list[Operand]:
        """The tensor arguments that are not lists."""
        return [item for item in self.items if isinstance(item, Operand)]

    @property
    def in_place(self) -> bool:
        return self.name.endswith("_") and not self.name.endswith("__")

    def dims(self, i: int, rank: int) -> tuple[int, ...]:
        """Argument ``i`` as dimensions, all of them where it is missing or empty."""
        value = self[i]
        if isinstance(value, bool) or not isinstance(value, (int, list)) or value == []:
            return tuple(range(rank))
        return tuple(sorted({d % max(rank, 1) for d in ([value] if isinstance(value, int) else value)}))
