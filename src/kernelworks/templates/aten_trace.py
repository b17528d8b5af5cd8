"""The torch operators that an op's function in torch calls, found by calling it, so that no op package lists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.dispatch.aten import Call, InputOperand, aten

__all__ = ["aten_of", "text"]


class _Watch(TorchDispatchMode):
    """Notes which operator made which tensor of what."""

    def __init__(self, inputs: Mapping[int, InputOperand]) -> None:
        TorchDispatchMode.__init__(self)
        self.made: dict[int, InputOperand | Call] = dict(inputs)
        self.kept: list[Any] = []  # an id stands for a tensor only as long as that lives
        self.unsayable = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No compiled program reaches it; to have Dynamo leave it alone would import Dynamo."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shape = _shape_of(func, args)
        result = (
            func(*args, **(kwargs or {}))
            if shape is None
            else torch.empty(shape, dtype=next(a for a in args if isinstance(a, Tensor)).dtype, device="meta")
        )
        made_of_nothing = not any(isinstance(a, Tensor) for a in args)  # a size and a device are not a call's own
        if not isinstance(result, Tensor) or func._schema.is_mutable or func.namespace != "aten" or made_of_nothing:
            self.unsayable = True
            return result
        said = _by_number(func, args)
        self.unsayable |= not said
        self.made[id(result)] = aten(
            said, *(self._of(a) for a in args), **{k: self._of(v) for k, v in (kwargs or {}).items()}
        )
        self.kept.append(result)
        return result

    def _of(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            self.unsayable |= not all(type(v) is int for v in value)
            return tuple(value)
        if not isinstance(value, Tensor):
            self.unsayable |= not isinstance(value, (int, float, str, type(None)))
            return value
        if id(value) not in self.made:  # one that the function holds
            self.unsayable = True
        return self.made.get(id(value))


def _shape_of(func: Any, args: Sequence[Any]) -> tuple[int, ...] | None:
    """The shape of what an operator makes of tensors without data, if it is pointwise or a matrix product, and they are
    of one floating dtype; else None. Torch asks formulas in Python for it, which import Dynamo: 1.5 s, in the first
    call of a process."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    if not tensors or func._schema.is_mutable or not all(t.is_meta and t.is_floating_point() for t in tensors):
        return None
    if len({t.dtype for t in tensors}) > 1:
        return None
    if func._opname in ("mm", "addmm"):
        return tensors[-2].shape[0], tensors[-1].shape[1]
    widest = max((tuple(t.shape) for t in tensors), key=lambda shape: (len(shape), math.prod(shape)))
    others = (zip(reversed(t.shape), reversed(widest), strict=False) for t in tensors)
    spreads = all(n in (1, size) for sizes in others for n, size in sizes)
    return widest if torch.Tag.pointwise in func.tags and spreads else None


def _by_number(func: Any, args: Sequence[Any]) -> str:
    """The operator's name with its overload: where Python gave a number for a tensor (``1 + x``), the one that takes
    numbers, or "" where there is none."""
    name, overload = func._opname, func._overloadname
    places = zip(args, func._schema.arguments, strict=False)
    if any(isinstance(given, (int, float)) and str(place.type) == "Tensor" for given, place in places):
        overload = "Scalar" if "Scalar" in getattr(torch.ops.aten, name).overloads() else ""
        return overload and f"{name}.{overload}"
    return name if overload == "default" else f"{name}.{overload}"


def aten_of(composite: Callable[..., Any]) -> Callable[..., Any]:
    """The ``aten`` expression of a function of torch's (``aten.py``), from the operators that a call of it on tensors
    without data comes to; None for what it cannot say (an operator that writes, or returns no single tensor).

    Only for functions whose operators depend on no value of their tensors.
    """

    def expression(*args: Any) -> Any:
        bare = [a.tensor.to("meta") if isinstance(a, InputOperand) else a for a in args]
        watch = _Watch({id(b): a for a, b in zip(args, bare, strict=True) if isinstance(a, InputOperand)})
        # Whatever autocast says: the op's dtype is its inputs', and the operators of a plan are no other call's casts.
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), watch:
            result = composite(*bare)
        found = watch.made.get(id(result)) if isinstance(result, Tensor) else None
        return None if watch.unsayable or not isinstance(found, Call) else found

    return expression


def text(expression: Any, names: Sequence[str]) -> str:
    """An expression as a reader reads it."""
    if isinstance(expression, InputOperand):
        return names[expression.place]
    if isinstance(expression, Call):
        parts = [text(a, names) for a in expression.args]
        parts += [f"{k}={text(v, names)}" for k, v in expression.named.items()]
        return f"{expression.name}({', '.join(parts)})"
    return repr(expression)
