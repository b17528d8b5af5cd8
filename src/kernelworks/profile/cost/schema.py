"""What torch itself says of an op: whether it only looks, whether it is made of others, what kind of loop it is.

The default for an op that has no formula of its own: one flop an element for what torch tags as pointwise or as a
reduction, every byte once; nothing for views and questions. What is neither stays unmodelled.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernelworks.profile.cost import NOTHING, Work
from kernelworks.profile.cost.operands import Arguments, Operand, total_bytes
from kernelworks.profile.cost.results import result_bytes, results

__all__ = ["by_schema", "is_composite", "no_tensors"]

COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")


@functools.cache
def is_composite(name: str, overload: str) -> bool:
    """Whether an aten op is nothing but calls of other ops (torch says so), so that their work is its work."""
    full = f"{name}.{overload}" if overload else name
    try:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in COMPOSITE)
    except RuntimeError:  # an op that this process does not know
        return False


def no_tensors(schema: Any) -> bool:
    """Whether the op returns no tensor and writes none: it answers a question about its arguments."""
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not writes and not any("Tensor" in str(r.type) for r in schema.returns)


def _views(schema: Any) -> bool:
    """Whether all that it returns are its arguments' own bytes, unchanged."""
    returns = [r.alias_info for r in schema.returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in returns)


@functools.cache
def _tags(name: str) -> frozenset[str]:
    """torch's tags of an op; those of its plain form count for ``out=`` and in place too."""
    found: set[str] = set()
    plain = name.removeprefix("aten::")
    for base_name in {plain, plain.removesuffix("_")}:
        packet = getattr(torch.ops.aten, base_name, None)
        for overload in packet.overloads() if packet is not None else ():
            found.update(str(tag).rpartition(".")[2] for tag in getattr(packet, overload).tags)
    return frozenset(found)


def by_schema(a: Arguments) -> Work | None:
    """The work of an op without a formula, if its schema and tags tell it; None if they do not."""
    schema, name, overload = a.schema, a.call.name, a.call.overload
    if schema is None:
        return None
    if no_tensors(schema):
        return NOTHING
    if is_composite(name, overload) and a.call.children:
        return None
    if _views(schema):
        return NOTHING
    tags = _tags(name)
    if "pointwise" in tags:
        return _loop(a, [*(results(a) or ()), *a.mutated_operands])
    if "reduction" in tags:
        return _loop(a, a.all_operands[:1])
    if "view_copy" in tags or not a.all_operands:
        written = result_bytes(a)
        return None if written is None else Work(0.0, 0.0, min(total_bytes(a.all_operands), written), written)
    return None


def _loop(a: Arguments, over: list[Operand]) -> Work | None:
    """One flop for each element of the largest tensor in ``over``; what is only written is not read."""
    written = result_bytes(a)
    if not over or written is None:
        return None
    n = max(o.numel for o in over)
    return Work(float(n), 0.0, total_bytes(a.all_operands), written + total_bytes(a.mutated_operands))
