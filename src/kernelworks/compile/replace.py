"""One call of a graph, replaced by the operator of an op with the kernel that is to run it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OpCall, Steps, TensorView, apply_steps, insert_steps, value_of
from kernelworks.compile.layouts import laid_as, lie_alike
from kernelworks.compile.split_passes import INDUCTOR, in_halves
from kernelworks.dispatch.mutation import as_tuple

__all__ = ["misfit", "replace_call"]

NodeMapping = Callable[[fx.Node], fx.Node]


def _made(op_call: OpCall) -> tuple[Tensor, ...]:
    """What the op returns for this call, without data."""
    return tuple(as_tuple(op_call.op.forward_shapes(op_call.args)))


def misfit(op_call: OpCall) -> str:
    """Why the op's result cannot take the place of the call's; "" if it can."""
    for node, place, steps in _results(op_call):
        made = apply_steps(_made(op_call)[place], steps)
        if value_of(node).shape != made.shape:
            return f"the op returns {list(made.shape)}, and torch returns {list(value_of(node).shape)}"
    return ""


def _results(op_call: OpCall) -> tuple[tuple[fx.Node, int, Steps], ...]:
    """The nodes that the op makes, each with the place of its result among the op's, and what leads from that to it."""
    return ((op_call.node, 0, op_call.after), *op_call.beside)


def replace_call(op_call: OpCall, kernel: str, there: NodeMapping) -> dict[fx.Node, fx.Node]:
    """Has the call that was ``op_call`` made by ``kernel``, in its graph or in a copy of it. ``there(node)`` is the
    node's counterpart in the copy. Returns what stands in the place of the call's node, and of those beside it.

    What goes in is an operator that torch knows (``torch.ops.kernelworks``), so that autograd records it, caches may
    keep the graph, and inductor calls it as one piece; or torch's function, for what only that takes. Its result has
    the dtype and the strides that the program saw.
    """
    at, op = there(op_call.node), op_call.op
    graph = at.graph
    now: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(at):
        args = tuple(
            value if source is None else _handed(graph, source, value, there)
            for source, value in zip(op_call.sources, op_call.args, strict=True)
        )
        if op_call.added is not None:
            made = _by_torch(op_call, args, there, graph)
        elif INDUCTOR in kernel:
            made = graph.call_function(in_halves, (op.name, kernel, *args))
        else:  # a backward may read an output that the call did not ask for
            args = op._to_record(*args) if op_call.wanted and op._to_record else args
            made = graph.call_function(op._overload, (*args, kernel))
        one_alone = op_call.added is not None or INDUCTOR in kernel
        several = not one_alone and len(op._overload._schema.returns) > 1
        for node, place, _ in _results(op_call):
            one = graph.call_function(operator.getitem, (made, place)) if several else made
            now[node] = _shown(op_call, node, one, there, laid=not one_alone)
    for node, new in now.items():
        was = there(node)
        new.meta["example_value"] = was.meta.get("example_value", value_of(node))
        was.replace_all_uses_with(new)
    for part in reversed((*op_call.around, *op_call.inside)):
        if not there(part).users and not there(part)._erased:  # calls may share what lies around them
            graph.erase_node(there(part))
    return now


def _shown(op_call: OpCall, node: fx.Node, made: fx.Node, there: NodeMapping, *, laid: bool) -> fx.Node:
    """One of the op's results as the program saw it. ``laid`` says that it lies as the op's operator has it."""
    graph, was = made.graph, value_of(node)
    place, steps = next((place, steps) for each, place, steps in _results(op_call) if each is node)
    result = _made(op_call)[place]
    if was.dtype != result.dtype:
        made = graph.call_method("to", (made, was.dtype))
    if op_call.blank is not None:
        mask, otherwise = op_call.blank
        sees = mask.by("any", -1, True).insert(graph, there)
        blank = otherwise.by("to", was.dtype).insert(graph, there) if isinstance(otherwise, TensorView) else otherwise
        made = graph.call_function(torch.where, (sees, made, blank))
    made = insert_steps(graph, made, steps)
    shown = apply_steps(result, steps)
    if not (laid and lie_alike(shown, was)):
        made = laid_as(graph, made, was)
    return made


def _by_torch(op_call: OpCall, args: tuple[Any, ...], there: NodeMapping, graph: fx.Graph) -> fx.Node:
    """Attention with what is added to its scores, by torch's function."""
    assert op_call.added is not None
    named = dict(zip(op_call.op.passes["forward"].names, op_call.args, strict=True))
    added = op_call.added.by("to", named["q"].dtype).insert(graph, there)
    more = {"attn_mask": added, "scale": named["scale"], "enable_gqa": named["q"].shape[1] != named["k"].shape[1]}
    return graph.call_function(op_call.op.torch_signature.function, args[:3], more)


def _handed(graph: fx.Graph, source: fx.Node | TensorView, value: Tensor, there: NodeMapping) -> fx.Node:
    """An argument as the op takes it: cast as autocast would have, with the dimensions it is read with."""
    if isinstance(source, TensorView):
        was, given = source.value(), source.insert(graph, there)
    else:
        given = there(source)
        was = value_of(given)
    if was.dim() != value.dim():
        ahead: Any = (*(None,) * (value.dim() - was.dim()), ...)
        given = graph.call_function(operator.getitem, (given, ahead))
    if was.dtype != value.dtype:
        given = graph.call_method("to", (given, value.dtype))
    return given
