"""An op as a few of torch's operators: what its function in torch calls in the end, for the way in through C++.

Where no kernel of ours is taken, torch's own function runs; C++ then calls the operators that it would have called,
which saves what Python spends on finding them. An op package says them as an expression: ``aten("mul.Tensor",
aten("silu", gate), up)``. Constants are fixed when a plan is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Call", "InputOperand", "aten", "program"]

INPUT, RESULT, CONSTANT, DEFAULT = 0, 1, 2, 3  # where an operand comes from; C++ knows these numbers


@dataclass(frozen=True, eq=False)
class InputOperand:
    """A tensor among an op's arguments."""

    place: int
    tensor: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape


@dataclass(frozen=True, eq=False)
class Call:
    """A call of one operator that returns a tensor; used twice, it is called once."""

    name: str
    args: tuple[Any, ...]
    named: dict[str, Any]


def aten(name: str, *args: Any, **named: Any) -> Call:
    """A call of torch's operator ``name`` (``"mul.Tensor"``), its arguments as the operator's schema has them."""
    return Call(name, args, named)


def program(module: Any, expression: Any, args: tuple[Any, ...]) -> Any:
    """What ``expression(*args)`` says, as the extension calls it for arguments like these; None where it says nothing.

    In place of tensors the expression gets ``InputOperand``. It returns a ``Call``, a tuple of them, or None.
    """
    said = expression(*(InputOperand(i, a) if isinstance(a, Tensor) else a for i, a in enumerate(args)))
    if said is None:
        return None
    steps: list[tuple[Any, ...]] = []
    done: dict[int, int] = {}
    outputs = tuple(_step(call, steps, done) for call in (said if isinstance(said, tuple) else (said,)))
    return module.Program(len(args), tuple(steps), outputs, not isinstance(said, tuple))


def _step(call: Call, steps: list[tuple[Any, ...]], done: dict[int, int]) -> int:
    """The number of a call's step, which is made where there is none, behind those that it reads."""
    if id(call) not in done:
        name, _, overload = call.name.partition(".")
        schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
        operands: list[tuple[int, Any]] = []
        for i, argument in enumerate(schema.arguments):
            if i < len(call.args):
                value = call.args[i]
            elif argument.name in call.named:
                value = call.named[argument.name]
            else:
                operands.append((DEFAULT, None))
                continue
            if isinstance(value, Call):
                operands.append((RESULT, _step(value, steps, done)))
            elif isinstance(value, InputOperand):
                operands.append((INPUT, value.place))
            else:
                operands.append((CONSTANT, value))
        unknown = call.named.keys() - {a.name for a in schema.arguments}
        if unknown or len(call.args) > len(schema.arguments):
            raise TypeError(f"aten::{call.name} has no {', '.join(unknown) or 'so many arguments'}")
        steps.append((f"aten::{name}", overload, tuple(operands)))
        done[id(call)] = len(steps) - 1
    return done[id(call)]
