"""Nodes of a graph run in float64 on tensors of fewer and smaller dimensions than the program's.

What a program says of sizes (``view(8, 12, 1024, 64)``) is read off the shapes that it had: dimensions that a view
joins or parts are joined or parted as they were, each with the size that it has here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import function_of, name_of, value_of
from kernelworks.compile.constants import possible_values

__all__ = ["CASTS", "RESHAPES", "run_nodes"]

RESHAPES = frozenset({
    "view", "reshape", "_unsafe_view", "expand", "expand_as", "broadcast_to", "flatten", "unflatten", "view_as",
    "reshape_as",
})  # fmt: skip
CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous"})


def run_nodes(nodes: Sequence[fx.Node], known: Mapping[fx.Node, Any]) -> Any:
    """What the last of some nodes returns, given what others returned. Raises whatever running them so raises."""
    values = dict(known)
    for node in nodes:
        values[node] = _one(node, values)
    return values[nodes[-1]]


def _one(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    name = name_of(node)
    first = values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    if name in CASTS and isinstance(first, Tensor):
        return first
    if name in RESHAPES and isinstance(first, Tensor):
        return _reshaped(first, value_of(node.args[0]).shape, value_of(node).shape)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n] if n in values else _number(n))
    args, kwargs = fx.node.map_aggregate((args, kwargs), _in_float64)
    function: Any = function_of(node)
    return function(*args, **kwargs)


def _number(node: fx.Node) -> Any:
    value = value_of(node)
    if isinstance(value, (int, float)):
        return value
    alike = possible_values(node)  # a tensor of one number, whatever its shape
    if alike is not None and len(alike) == 1:
        return torch.tensor(next(iter(alike)), dtype=torch.float64, device="cpu")
    raise KeyError(f"{node} is not known")


def _in_float64(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _reshaped(x: Tensor, was: Sequence[int], now: Sequence[int]) -> Tensor:
    """``x``, which stands for a tensor that ``was`` of some sizes, as that tensor ``now`` is shaped."""
    if math.prod(was) != math.prod(now):
        more = len(now) - len(was)
        ahead = list(now[:more])
        kept = [n if w == 1 else s for w, n, s in zip(was, now[more:], x.shape, strict=True)]
        return x.expand([*ahead, *kept])
    sizes: list[int] = []
    i = j = 0
    while i < len(was) or j < len(now):
        begin, start = i, j
        i, j = i + 1, j + 1
        a, b = math.prod(was[begin:i]), math.prod(now[start:j])
        while a != b:  # math.prod of nothing is 1: what is left over at an end is of size 1
            if a < b:
                a, i = a * was[i], i + 1
            else:
                b, j = b * now[j], j + 1
        sizes += _parted(list(x.shape[begin:i]), list(now[start:j]))
    return x.reshape(sizes)


def _parted(small: Sequence[int], now: Sequence[int]) -> list[int]:
    """The sizes of dimensions that together hold what some ``small`` ones hold, and were ``now``."""
    total, sizes = math.prod(small), list(now)
    if len(now) == 1:
        return [total]
    if not now or total == math.prod(now):
        return sizes
    fits = [at for at, n in enumerate(now) if n * total % math.prod(now) == 0]
    at = next((at for at in fits if now[at] * total // math.prod(now) in small), fits[0])
    sizes[at] = now[at] * total // math.prod(now)
    return sizes
