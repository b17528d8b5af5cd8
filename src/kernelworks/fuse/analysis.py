"""How far a fused kernel may be from the expression: a running error analysis of its values, on given inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import rounding
from kernelworks.fuse.expression import ELEMENTS, REDUCTIONS, SUMS, Expression, Node
from kernelworks.fuse.functions import ELEMENT_FUNCTIONS
from kernelworks.templates.running_error import Comparison, Running, add_up, largest, to_float32

__all__ = ["bounds_of"]

GREATEST = torch.finfo(torch.float32).max


def bounds_of(
    expression: Expression, inputs: Sequence[Tensor], numbers: Sequence[float], keeps: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Of each output its value in float64 and by how much a kernel may miss it. ``keeps`` are the masks of the random
    streams."""
    values: list[Any] = []
    for node in expression.nodes:
        made = _value(expression, node, values, inputs, numbers, keeps)
        values.append(_overflowing(made, _is_free(values, node)) if isinstance(made, Running) else made)
    return [_output(expression, output, values[output.node]) for output in expression.outputs]


def _exact(value: Tensor) -> Running:
    return Running(value, torch.zeros_like(value))


def _number(number: float) -> Running:
    value = torch.tensor(number, dtype=torch.float64)
    off = abs(number - to_float32(number)) if math.isfinite(number) else 0.0
    return Running(value, torch.full_like(value, off))


def _value(
    expression: Expression, node: Node, values: list[Any], inputs: Sequence[Tensor], numbers: Sequence[float],
    keeps: Sequence[Tensor],
) -> Any:  # fmt: skip
    if node.op == "input":
        return _exact(inputs[node.operands[0]].double())
    if node.op == "number":
        return _number(numbers[node.operands[0]])
    if node.op == "constant":
        return _number(node.operands[0])
    if node.op == "length":
        return _number(float(expression.shape[-1]))
    if node.op == "kept":
        keep = keeps[node.operands[0]]
        return Comparison(keep, torch.zeros_like(keep))
    given = [values[k] for k in node.operands]
    if node.op in ("row_sum", "row_max", "row_min"):
        whole = (*expression.shape[:-1], expression.shape[-1])
        x = Running(given[0].value.expand(whole), given[0].error.expand(whole))
        if node.op == "row_sum":
            return _row_total(x)
        return largest(x) if node.op == "row_max" else -largest(-x)
    return ELEMENT_FUNCTIONS[node.op].analysis(*given)


def _row_total(x: Running) -> Running:
    """The sum of each row. A part of it may overflow float32 before it meets an infinity of the other sign."""
    made = add_up(x)
    finite = torch.where(x.value.isfinite(), x.value.abs() + x.error, torch.zeros_like(x.value))
    meets = made.value.isinf() & (finite.sum(-1, keepdim=True) >= GREATEST)
    return Running(made.value, torch.where(meets, torch.full_like(made.error, torch.inf), made.error))


def _is_free(values: Sequence[Any], node: Node) -> Tensor:
    """Where an operand may be anything. A reduction's error says it itself."""
    found = torch.zeros((), dtype=torch.bool)
    for k in () if node.op in REDUCTIONS else node.values:
        if isinstance(values[k], Running):
            found = found | (values[k].error == torch.inf)
    return found


def _overflowing(made: Running, free: Tensor) -> Running:
    """What float32 has no number for may be anything from there on. An infinity that its operands make is exact, unless
    they may be anything (``free``)."""
    beyond = made.value.isfinite() & (made.value.abs() + made.error.nan_to_num(0.0) >= GREATEST)
    beyond = beyond | (made.error.isnan() & free)
    error = torch.where(made.error.isnan(), torch.zeros_like(made.error), made.error)
    return Running(made.value, torch.where(beyond, torch.full_like(error, torch.inf), error))


def _output(expression: Expression, output: Any, made: Any) -> tuple[Tensor, Tensor]:
    if isinstance(made, Comparison):
        error = torch.where(made.unsure, torch.inf, 0.0).double()
        made = Running(made.holds.double(), error)
    if output.place == SUMS:
        made = _summed(expression, output.shape, made)
    value, error = made.value, made.error
    shape = expression.shape if output.place == ELEMENTS else output.shape
    value, error = (t.expand(shape) if output.place == ELEMENTS else t.reshape(shape) for t in (value, error))
    exact = (error == 0.0) & (value.to(output.dtype).double() == value)
    last = (
        torch.where(exact, torch.zeros_like(value), rounding(value, output.dtype))
        if output.dtype.is_floating_point
        else 0.0
    )
    return value, error + last


def _summed(expression: Expression, shape: tuple[int, ...], made: Running) -> Running:
    """What a broadcast argument's gradient is: the sum over what it is broadcast along."""
    lead = len(expression.shape) - len(shape)
    dims = [d for d, n in enumerate(expression.shape) if d < lead or (shape[d - lead] == 1 and n != 1)]
    value, error = made.value.expand(expression.shape), made.error.expand(expression.shape)
    order = [d for d in range(len(expression.shape)) if d not in dims]
    rest = [expression.shape[d] for d in order]
    rows = Running(*(t.permute(*order, *dims).reshape(*rest, -1) for t in (value, error)))
    found = _row_total(rows)
    return Running(found.value.reshape(shape), found.error.reshape(shape))
