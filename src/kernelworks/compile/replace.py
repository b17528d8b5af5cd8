"""One call of a graph, made the operator of an op with the row that is to run it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import Found, value_of
from kernelworks.written import as_tuple

__all__ = ["misfit", "replaced"]


def _made(found: Found) -> Tensor:
    """What the op returns for this call, without data."""
    result = found.op.forward_shapes(found.args)
    made: Tensor = as_tuple(result)[0]
    return made


def misfit(found: Found) -> str:
    """Why the op's result cannot stand where the call's stood; "" where it can."""
    was, made = value_of(found.node), _made(found)
    if was.shape != made.shape:
        return f"the op returns {list(made.shape)} where torch returns another shape"
    return ""


def replaced(found: Found, row: str, there: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """Has the call that was ``found`` made by ``row``, in its graph or in a copy of it, where ``there(node)`` stands
    for a node of the graph. Returns what stands in the place of the call's node.

    What goes in is an operator that torch knows (``torch.ops.kernelworks``), so that autograd records it, caches may
    keep the graph, and inductor calls it as one piece. Its result has the dtype and the strides that the program saw.
    """
    op, node, was, result = found.op, there(found.node), value_of(found.node), _made(found)
    graph = node.graph
    with graph.inserting_before(node):
        args = tuple(
            value if source is None else _handed(there(source), value)
            for source, value in zip(found.sources, found.args, strict=True)
        )
        if found.wanted and op._to_record:  # the backward reads an output that the call did not ask for
            args = op._to_record(*args)
        made = graph.call_function(op._overload, (*args, row))
        if len(op._overload._schema.returns) > 1:
            made = graph.call_function(operator.getitem, (made, 0))
        if was.dtype != result.dtype:
            made = graph.call_method("to", (made, was.dtype))
        if found.seen is not None:
            sees = graph.call_method("any", (there(found.seen), -1, True))
            made = graph.call_function(torch.where, (sees, made, math.nan))
        if was.is_contiguous() and not result.is_contiguous():
            made = graph.call_method("contiguous", (made,))
    made.meta["example_value"] = node.meta.get("example_value", was)
    node.replace_all_uses_with(made)
    for part in reversed(found.inside):
        if not there(part).users:
            graph.erase_node(there(part))
    return made


def _handed(given: fx.Node, value: Tensor) -> fx.Node:
    """An argument as the op takes it: cast as autocast would have, with the dimensions it is read with."""
    was, graph = value_of(given), given.graph
    if was.dim() != value.dim():
        ahead: Any = (*(None,) * (value.dim() - was.dim()), ...)
        given = graph.call_function(operator.getitem, (given, ahead))
    if was.dtype != value.dtype:
        given = graph.call_method("to", (given, value.dtype))
    return given
