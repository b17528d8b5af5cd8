"""What a call returns, from torch's own rules of shapes: the op is run on tensors without data (device ``meta``).

So every op that torch can compile has its output's size here without a formula: rounding of pools, promotion of dtypes,
output padding, and whether a ``reshape`` copies.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from kernelworks.profile.cost.operands import Arguments, Operand, schema_of

__all__ = ["result_bytes", "results"]

MOST = 4096  # So many distinct calls are remembered.

SCALAR_TYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip  # c10::ScalarType
FORMATS = {
    0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last, 3: torch.channels_last_3d,
}  # fmt: skip  # c10::MemoryFormat

_known: dict[Any, list[Operand] | None] = {}


def results(a: Arguments) -> list[Operand] | None:
    """The tensors that the call returns and that are not its arguments' own bytes; None if torch cannot tell them
    from shapes alone (``nonzero``), or not from what the profiler records (a string without a default)."""
    if a.out:
        return a.out
    try:
        key = (a.call.name, a.call.overload, repr([_plain(item) for item in a.items]))
    except RecursionError:
        return None
    if key not in _known:
        if len(_known) >= MOST:
            _known.clear()
        _known[key] = _run(a)
    return _known[key]


def result_bytes(a: Arguments) -> int | None:
    """Bytes of ``results``; if torch cannot tell them, of what the call was seen to allocate and leave behind."""
    found = results(a)
    if found is not None:
        return sum(o.bytes for o in found)
    if not a.call.tensors:
        return None  # recorded without the tree that knows of blocks
    return sum(size for _, size in a.call.made)


def _plain(item: Any) -> Any:
    if isinstance(item, list):
        return [_plain(i) for i in item]
    return (item.shape, item.stride, str(item.dtype)) if isinstance(item, Operand) else item


def _run(a: Arguments) -> list[Operand] | None:
    packet = getattr(torch.ops.aten, a.name, None)
    op = getattr(packet, a.call.overload or "default", None)
    schema = schema_of(a.call.name, a.call.overload)
    if op is None or schema is None:
        return None
    given: list[torch.Tensor] = []
    positional, named = [], {}
    try:
        for i, argument in enumerate(schema.arguments):
            value = _value(a[i], argument, given)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        with torch.no_grad(), torch._C.DisableTorchFunction(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own run has given them
            made = op(*positional, **named)
    except Exception:  # a kernel for meta may raise anything: then torch does not tell
        return None
    storages = {t.untyped_storage()._cdata for t in given}
    found = []
    for tensor in made if isinstance(made, (tuple, list)) else [made]:
        for t in tensor if isinstance(tensor, (tuple, list)) else [tensor]:
            if not isinstance(t, torch.Tensor):
                continue
            if t.layout is not torch.strided:
                return None  # how many values a sparse one holds is not told by shapes
            if t.untyped_storage()._cdata not in storages:
                found.append(Operand(tuple(t.shape), tuple(t.stride()), t.dtype))
    return found


def _value(item: Any, argument: Any, given: list[torch.Tensor]) -> Any:
    if isinstance(item, Operand):
        strides = item.stride if len(item.stride) == len(item.shape) else None
        t = (
            torch.empty(item.shape, dtype=item.dtype, device="meta")
            if strides is None
            else torch.empty_strided(item.shape, strides, dtype=item.dtype, device="meta")
        )
        given.append(t)
        return t
    if isinstance(item, list):
        return [_value(i, argument, given) for i in item]
    kind = str(argument.type)
    if argument.name == "device":
        return torch.device("meta")
    if item is None:
        return argument.default_value if argument.has_default_value() else None
    if argument.name in ("dtype", "output_dtype", "out_dtype"):
        return SCALAR_TYPES.get(item)
    if argument.name == "memory_format":
        return FORMATS.get(item)
    if argument.name in ("layout", "pin_memory"):
        return None
    return bool(item) if "bool" in kind and isinstance(item, int) else item
