"""Which tensors a call was given and which storages it left behind, from the profiler's tree of events.

The events themselves know sizes and strides; only the tree knows addresses, and which blocks were allocated and freed
within a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Inputs", "inputs_of"]

MEMORY = "[memory]"


@dataclass(slots=True)
class Inputs:
    """What the tree knows of one call. A list has an entry per argument: one of a tensor, a list of a list of tensors.

    ``pointers`` are storage addresses; ``shapes`` and ``strides`` as in Call, empty if the profiler's events say
    them; ``listed`` is the dtype of the tensors in lists. ``tensors`` says which arguments are one tensor (by the
    address of torch's own record of it) and ``storage_bytes`` the bytes of its storage, 0 if that is older than the
    run. ``made`` are the storages, with their bytes, that the call allocated and did not free before it ended.
    """

    pointers: list[Any] = field(default_factory=list)
    shapes: list[Any] = field(default_factory=list)
    strides: list[Any] = field(default_factory=list)
    listed: torch.dtype | None = None
    tensors: list[Any] = field(default_factory=list)
    storage_bytes: list[Any] = field(default_factory=list)
    made: tuple[tuple[int, int], ...] = ()


def inputs_of(results: Any) -> dict[int, Inputs]:
    """The inputs of every call by its correlation.

    Sizes and strides only if the events do not know those of a list of tensors (before torch 2.12).
    """
    sizes_too = not hasattr(torch._C._autograd._KinetoEvent, "structured_input_shapes")
    found: dict[int, Inputs] = {}
    live: dict[int, int] = {}  # storage address -> bytes, of what the run has allocated so far
    waiting = list(reversed(results.experimental_event_tree()))
    while waiting:
        node = waiting.pop()
        name = node.name
        if name == MEMORY:
            _allocate(node.extra_fields, live, {})
            continue
        given = getattr(node.extra_fields, "inputs", None) if "::" in name else None
        if not given:  # an annotation, or a node of autograd's: the ops are below it
            waiting.extend(reversed(node.children))
            continue
        its = found[node.correlation_id] = Inputs()
        _read(its, given, live, sizes_too)
        its.made = _made(node, live)
        _below(node, found, sizes_too)
    return found


def _below(op: Any, found: dict[int, Inputs], sizes_too: bool) -> None:
    """The inputs of the ops below one."""
    waiting = list(op.children)
    while waiting:
        node = waiting.pop()
        if node.name != MEMORY:
            its = found[node.correlation_id] = Inputs(made=_made(node, {}))
            _read(its, getattr(node.extra_fields, "inputs", None) or (), None, sizes_too)
            waiting.extend(node.children)


def _made(op: Any, live: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """What is allocated below an op and left behind."""
    made: dict[int, int] = {}
    waiting = list(reversed(op.children))
    while waiting:
        node = waiting.pop()
        if node.name == MEMORY:
            _allocate(node.extra_fields, live, made)
        else:
            waiting.extend(reversed(node.children))
    return tuple(made.items())


def _allocate(event: Any, live: dict[int, int], made: dict[int, int]) -> None:
    pointer, size = event.ptr, event.alloc_size
    if size > 0:
        live[pointer] = made[pointer] = size
    else:
        live.pop(pointer, None)
        made.pop(pointer, None)


def _read(its: Inputs, given: Any, live: dict[int, int] | None, sizes_too: bool) -> None:
    for item in given:
        tensors = [t for t in item if hasattr(t, "storage_data_ptr")] if isinstance(item, list) else []
        if tensors:
            its.listed = its.listed or tensors[0].dtype
            its.pointers.append([t.storage_data_ptr for t in tensors])
            its.tensors.append([t.impl_ptr for t in tensors])
            if live is not None:
                its.storage_bytes.append([live.get(t.storage_data_ptr or 0, 0) for t in tensors])
        else:
            pointer = getattr(item, "storage_data_ptr", None)
            its.pointers.append(pointer)
            its.tensors.append(getattr(item, "impl_ptr", None))
            if live is not None:
                its.storage_bytes.append(live.get(pointer or 0, 0))
    if sizes_too:
        its.shapes, its.strides = _each(given, "sizes"), _each(given, "strides")


def _each(given: Any, attribute: str) -> list[Any]:
    """Sizes or strides of every tensor, of lists of tensors a list, else []."""
    found: list[Any] = []
    for item in given:
        if isinstance(item, list):
            found.append([getattr(inner, attribute) for inner in item if hasattr(inner, attribute)])
        else:
            found.append(getattr(item, attribute, []))
    return found
