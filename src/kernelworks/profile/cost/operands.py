"""A call's arguments without their data: shapes, strides, dtypes, and which of them share their bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelworks.profile.trace import Call

__all__ = ["Arguments", "Operand", "broadcast", "distinct_elements", "name_of", "schema_of", "total_bytes"]


@dataclass(frozen=True)
class Operand:
    """A tensor argument without its data. ``tensor`` says which arguments are one tensor, ``storage`` which share their
    bytes, ``storage_bytes`` how many bytes that storage has; 0 if it is not known."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    tensor: int = field(default=0, compare=False)
    storage: int = field(default=0, compare=False)
    storage_bytes: int = field(default=0, compare=False)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of distinct elements: an expanded dimension is read once."""
        return distinct_elements(self.shape, self.stride) * self.dtype.itemsize


def total_bytes(operands: Iterable[Operand]) -> int:
    """Bytes of several operands: a tensor that is given twice is read once, and views of one storage hold no more
    than it."""
    total = 0
    sharing: dict[int, tuple[dict[Any, int], int]] = {}
    for operand in operands:
        if operand.storage:
            views, _ = sharing.setdefault(operand.storage, ({}, operand.storage_bytes))
            views[operand.tensor, operand.shape, operand.stride] = operand.bytes
        else:
            total += operand.bytes
    for views, storage_bytes in sharing.values():
        size = sum(views.values())
        total += max(min(size, storage_bytes), max(views.values())) if storage_bytes else size
    return total


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def distinct_elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    if len(stride) != len(shape):
        return math.prod(shape)
    return math.prod(1 if step == 0 and size else size for size, step in zip(shape, stride, strict=True))


def broadcast(operands: Iterable[Operand]) -> tuple[int, ...]:
    """The shape that the operands have together."""
    shapes = [o.shape for o in operands]
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0] if shapes else ()
    return tuple(torch.broadcast_shapes(*shapes))


class Arguments:
    """A call's arguments as the formulas want them: ``[i]``, or ``["stride"]`` by the name in torch's schema, is an
    Operand, a list of them, a number, a list, or None."""

    def __init__(self, call: Call) -> None:
        self.name = call.name.removeprefix("aten::")
        self.call = call
        if call.items is None:
            call.items = [self._item(i) for i in range(len(call.dtypes))]
        self.items = list(call.items)
        self.out: list[Operand] = []  # of an ``out=`` form: written, not read; every formula counts that itself
        while "out" in call.overload and self._writes_last():
            self.out.insert(0, self.items.pop())

    def _writes_last(self) -> bool:
        if not self.items or not isinstance(self.items[-1], Operand):
            return False
        at = len(self.items) - 1
        return bool(self.schema.arguments[at].is_out) if self.schema else self.call.overload == "out" and not self.out

    def _item(self, i: int) -> Any:
        call = self.call
        dtype, shape = call.dtypes[i], call.shapes[i] if i < len(call.shapes) else []
        stride = call.strides[i] if i < len(call.strides) else []
        if dtype is None and not shape:
            return call.scalars[i] if i < len(call.scalars) else None
        known = [found[i] if i < len(found) else None for found in (call.tensors, call.pointers, call.storage_bytes)]
        if dtype is not None:
            return Operand(tuple(shape), tuple(stride), dtype, *(value or 0 for value in known))
        if isinstance(shape[0], list):  # a list of tensors: the profiler does not tell their dtype
            each = zip(*(value if isinstance(value, list) else [0] * len(shape) for value in known), strict=False)
            return [
                Operand(tuple(s), tuple(t), self._list_dtype(), *(value or 0 for value in its))
                for s, t, its in zip(shape, stride, each, strict=False)
            ]
        return call.scalars[i] if i < len(call.scalars) else None

    def _list_dtype(self) -> torch.dtype:
        """The dtype of a list of tensors; if nothing told it, that of the first tensor in or below the call that has
        one."""
        if self.call.listed is not None:
            return self.call.listed
        waiting = [self.call]
        while waiting:
            call = waiting.pop(0)
            known = next((d for d in call.dtypes if d is not None), None)
            if known is not None:
                return known
            waiting.extend(call.children)
        return torch.float32

    @functools.cached_property
    def schema(self) -> Any:
        """torch's schema of the op, by its overload; None for an op that this process does not know."""
        return schema_of(self.call.name, self.call.overload)

    def __getitem__(self, i: int | str) -> Any:
        if isinstance(i, str):
            names = [argument.name for argument in self.schema.arguments] if self.schema else []
            if i not in names:
                return None
            argument, value = self.schema.arguments[names.index(i)], self[names.index(i)]
            return argument.default_value if value is None and argument.has_default_value() else value
        return self.items[i] if i < len(self.items) else None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def operands(self) -> list[Operand]:
        """The tensor arguments that are not lists."""
        return [item for item in self.items if isinstance(item, Operand)]

    @property
    def all_operands(self) -> list[Operand]:
        """All tensor arguments, those in lists too."""
        found: list[Operand] = []
        for item in self.items:
            found += [o for o in (item if isinstance(item, list) else [item]) if isinstance(o, Operand)]
        return found

    @property
    def mutated_operands(self) -> list[Operand]:
        """The tensor arguments that the call writes into, by its schema; those of ``out=`` are in ``out``."""
        found: list[Operand] = []
        for item, argument in zip(self.items, self.schema.arguments if self.schema else (), strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found += [o for o in (item if isinstance(item, list) else [item]) if isinstance(o, Operand)]
        return found

    @property
    def in_place(self) -> bool:
        return self.name.endswith("_") and not self.name.endswith("__")

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """The dimensions that argument ``name`` says, all of them if there is no such argument or it is empty."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, (int, list)) or value == []:
            return tuple(range(rank))
        return tuple(sorted({d % max(rank, 1) for d in ([value] if isinstance(value, int) else value)}))


@functools.cache
def schema_of(name: str, overload: str) -> Any:
    """torch's schema of an op by its full name (``aten::add``) and overload, or None."""
    try:
        return torch._C._get_schema(name, overload)
    except RuntimeError:
        return None
