"""Views: of an argument, which are taken of it at each call, and of values, which only align them anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelworks.fuse.trace import FuseError
from kernelworks.fuse.values import Value

__all__ = ["ArgumentView", "is_view", "reshape"]

# They copy only where a view cannot say it, and are views of an argument then as well.
VIEWING = ("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "expand", "_reshape_alias")


def is_view(target: Any) -> bool:
    """Whether an operator returns other views of its first argument."""
    if target.overloadpacket.__name__ in VIEWING:
        return True
    returns = target._schema.returns
    aliases = [r.alias_info for r in returns]
    return bool(returns) and all(a is not None and not a.is_write for a in aliases)


@dataclass(frozen=True)
class ArgumentView:
    """Of the leaf at ``place``: the operators that make it, one after another; an integer picks of several."""

    place: int
    chain: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def take_view(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], held: Any) -> ArgumentView:
        step = (target, _frozen(args), tuple(kwargs.items()))
        shape = tuple(held.shape) if isinstance(held, Tensor) else ()
        return replace(self, chain=(*self.chain, step), shape=shape)

    def getitem(self, at: int, held: Tensor) -> ArgumentView:
        return replace(self, chain=(*self.chain, at), shape=tuple(held.shape))

    def with_last(self) -> ArgumentView:
        """With a last dimension of one element."""
        step = (torch.ops.aten.unsqueeze.default, (-1,), ())
        return replace(self, chain=(*self.chain, step), shape=(*self.shape, 1))

    def of(self, leaf: Any) -> Any:
        """Of the tensor of a call."""
        for step in self.chain:
            if isinstance(step, int):
                leaf = leaf[step]
            else:
                target, args, kwargs = step
                leaf = target(leaf, *args, **dict(kwargs))
        return leaf


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


def reshape(value: Value, shape: tuple[int, ...]) -> Value:
    """The same value aligned in another shape. Raises FuseError where that moves elements."""
    if value.total is not None:
        return replace(value, shape=shape)
    held = (*value.shape, 1) if value.lost else value.shape
    if _bare(held) == _bare(shape):
        return replace(value, shape=shape, lost=False)
    if held and held[-1] == 1 and _bare(held[:-1]) == _bare(shape) and value.shape:
        return replace(value, shape=shape, lost=True)
    try:
        whole = tuple(torch.broadcast_shapes(held, shape))
    except RuntimeError:
        whole = ()
    if whole == shape and not (value.lost and len(shape) <= len(value.shape)):
        return replace(value, shape=shape, lost=False)
    raise FuseError(f"a view of {value.shape} as {shape} of what is computed: take it of the argument")


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading dimensions of one element."""
    at = 0
    while at < len(shape) and shape[at] == 1:
        at += 1
    return shape[at:]
