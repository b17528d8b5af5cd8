"""The tensors that an object of a candidate's holds, as they lie in it: its class may have methods of its own that list
others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

__all__ = ["elements_held", "named_tensors"]


def elements_held(made: Any) -> int:
    """Of every tensor among the attributes of a module and its parts, in lists and mappings too: once each."""
    found, seen = 0, set[int]()
    pending: list[Any] = [made]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found += value.numel()
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value
        elif isinstance(value, nn.Module) or type(value).__module__.startswith("judged_"):
            pending += vars(value).values() if hasattr(value, "__dict__") else ()
    return found


def _own(module: nn.Module, name: str) -> dict[str, Any]:
    """One of the mappings that a module keeps: none where it has no such."""
    its = object.__getattribute__(module, "__dict__").get(name)
    return its if isinstance(its, dict) else {}


def _parts(module: nn.Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield prefix, module
    for name, part in _own(module, "_modules").items():
        if isinstance(part, nn.Module):
            yield from _parts(part, f"{prefix}{name}.", seen)


def named_tensors(module: nn.Module, kind: str) -> dict[str, Tensor]:
    """Of a module and its parts the tensors in ``_parameters`` or ``_buffers``, each once, by name."""
    found, seen = dict[str, Tensor](), set[int]()
    for prefix, part in _parts(module, "", set()):
        for name, value in _own(part, kind).items():
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                found[f"{prefix}{name}"] = value
    return found
