"""Values of an expression while a graph is read: what they are made of by Python's operators, and their shapes.

A shape is aligned with the iteration space at its last dimension, as torch broadcasts. ``lost``: the last dimension
was reduced away, so what is left is aligned one dimension before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from kernelworks.fuse.expression import BOOLEAN, Expression
from kernelworks.fuse.trace import FuseError

__all__ = ["FUNCTION_SCOPE", "Value", "apply_function", "number_value"]


@dataclass(frozen=True, eq=False)
class Value:
    """``place`` in the expression. ``total``: the value summed over what this shape is broadcast along, which only an
    output may be."""

    expression: Expression
    place: int
    shape: tuple[int, ...]
    lost: bool = False
    total: tuple[int, ...] | None = None

    @property
    def is_true(self) -> bool:
        return self.expression.nodes[self.place].op in BOOLEAN

    def __add__(self, other: Any) -> Value:
        return apply_function("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return apply_function("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return apply_function("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return apply_function("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return apply_function("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return apply_function("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return apply_function("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return apply_function("div", other, self)

    def __neg__(self) -> Value:
        return apply_function("neg", self)

    def __lt__(self, other: Any) -> Value:
        return apply_function("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return apply_function("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return apply_function("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return apply_function("ge", self, other)

    def __and__(self, other: Any) -> Value:
        return apply_function("and", self, other)

    def __or__(self, other: Any) -> Value:
        return apply_function("or", self, other)

    def __xor__(self, other: Any) -> Value:
        return apply_function("xor", self, other)

    def __invert__(self) -> Value:
        return apply_function("not", self)


def number_value(expression: Expression, number: float) -> Value:
    return Value(expression, expression.add("constant", float(number)), ())


def as_truth(value: Value) -> Value:
    """Whether it is not 0."""
    if value.is_true:
        return value
    return replace(value, place=value.expression.add("true", value.place))


def as_number(value: Value) -> Value:
    """1 where it is true."""
    if not value.is_true:
        return value
    e = value.expression
    return replace(value, place=e.add("where", value.place, e.add("constant", 1.0), e.add("constant", 0.0)))


LOGICAL = {"and", "or", "xor", "not"}
LINEAR = {"neg", "mul", "div"}  # may be applied before a sum as well as behind it, with a number


def apply_function(op: str, *given: Any) -> Value:
    """A function of values and Python's numbers. Raises FuseError where shapes do not go together."""
    e = next(v.expression for v in given if isinstance(v, Value))
    values = [v if isinstance(v, Value) else number_value(e, float(v)) for v in given]
    values = [
        as_truth(v) if op in LOGICAL or (op == "where" and k == 0) else as_number(v) for k, v in enumerate(values)
    ]
    place = e.add(op, *(v.place for v in values))
    totals = [v.total for v in values if v.total is not None]
    if totals:
        numbers = all(v.total is not None or not v.shape for v in values)
        alike = len(totals) == len(values) and len(set(totals)) == 1
        if not (numbers and op in LINEAR and len(totals) == 1 and given[-1 if op == "div" else 0] is not None) and not (
            alike and op in ("add", "sub")
        ):
            raise FuseError(f"{op} of what was summed over rows: only a result may be such a sum")
        if op == "div" and values[1].total is not None:
            raise FuseError("a division by what was summed over rows: only a result may be such a sum")
    shaped = [v for v in values if v.shape or v.lost]
    lost = any(v.lost for v in shaped)
    if lost and not all(v.lost for v in shaped):
        raise FuseError(f"{op} of a row's values without their dimension and others: reduce with keepdim=True")
    shape = tuple(torch.broadcast_shapes(*(v.shape for v in values)))
    return Value(e, place, shape, lost, totals[0] if totals else None)


def _function(op: str) -> Any:
    return lambda *given: apply_function(op, *given)


# What an expression of the table of activations may call.
FUNCTION_SCOPE: dict[str, Any] = {
    name: _function(name) for name in ("where", "abs", "exp", "expm1", "log1p", "sigmoid", "tanh")
}
