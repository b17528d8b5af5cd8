"""The region of a graph in which a call lies: what a compiler would fuse with it, cut out as a graph of its own.

Fusing ends at products: matrix products, convolutions, attention, whatever a library is called for. The region holds
what lies a few steps before and after the call, up to them. An op that runs by itself loses what inductor would have
saved there, and only a benchmark of the whole region says whether that is more than it gains. Sizes that vary between
calls are in it as they were seen.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OpCall, State, trace_operators, value_of, writes

__all__ = ["Region", "describe_graph", "region_of", "with_copy"]

STEPS = 5  # A region holds so many neighbours in a row on either side, views and casts among them.
MOST = 48  # A region has at most so many nodes.

# Operators beside those that torch tags as pointwise, as reductions or as views, which inductor makes loops of.
LOOPS = frozenset({
    "_to_copy", "clone", "copy", "cat", "stack", "_softmax", "_log_softmax", "var_mean", "native_dropout",
    "_unsafe_view", "where", "gather", "constant_pad_nd", "scalar_tensor", "full", "arange", "zeros_like",
    "ones_like", "expand", "lift_fresh_copy", "detach", "alias",
})  # fmt: skip


@dataclass(frozen=True)
class Region:
    """A part of a graph around some nodes of it. ``inputs`` are the tensors outside that it reads, ``copies`` says of
    them and of each of its nodes the one in ``module``, a graph of its own that returns what others read of it."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    copies: dict[fx.Node, fx.Node]
    state: State

    @functools.cached_property
    def description(self) -> str:
        return describe_graph(self.module.graph, self.state)

    def place_of(self, node: fx.Node) -> int:
        """Where a node of the program's stands in ``description``."""
        return list(self.module.graph.nodes).index(self.copies[node])

    @functools.cached_property
    def key(self) -> str:
        return hashlib.sha256(self.description.encode()).hexdigest()[:24]


def describe_graph(graph: fx.Graph, state: State) -> str:
    """What a graph computes on what, in words that are the same wherever it is met again."""
    numbers: dict[fx.Node, str] = {}
    lines = []
    for place, node in enumerate(graph.nodes):
        numbers[node] = f"%{place}"
        if node.op == "placeholder":
            lines.append(f"%{place} = {_looks(value_of(node))}")
            continue
        args = fx.map_arg((node.args, node.kwargs), lambda n: _Named(numbers[n]))
        lines.append(f"%{place} = {_target(node)}{args}")
    on = ", ".join(f"{d} {t}" for d, t in state.autocast)
    return "\n".join([f"autocast {on or 'off'}; gradients {'on' if state.grad else 'off'}", *lines])


class _Named(str):
    def __repr__(self) -> str:
        return str(self)


def _target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__qualname__', str(node.target))}"


def _looks(value: Any) -> str:
    if isinstance(value, Tensor):
        grad = " grad" if value.requires_grad else ""
        return f"{value.dtype}{list(value.shape)} by {list(value.stride())} on {value.device.type}{grad}"
    return repr(value)


def region_of(call: OpCall, at: dict[fx.Node, State], fusible: dict[fx.Node, bool]) -> Region | str:
    """The region of a call, or the reason why it cannot be cut out. ``fusible`` keeps what was found of nodes."""
    inside = {*call.inside, *call.around}
    for step in (_before, _after):
        _grow(call, step, at, fusible, inside)
    return _cut(call.node.graph, inside, at[call.node])


def _before(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def _after(node: fx.Node) -> Iterable[fx.Node]:
    return node.users


def _grow(
    call: OpCall, step: Any, at: dict[fx.Node, State], fusible: dict[fx.Node, bool], inside: set[fx.Node]
) -> None:
    """Takes in what lies within ``STEPS`` in one direction, nearest first."""
    ring = list(call.inside)
    for _ in range(STEPS):
        ring = list(dict.fromkeys(n for found in ring for n in step(found) if n not in inside))
        ring = [n for n in ring if at[n] == call.state and _fuses(n, at[n], fusible)][: max(0, MOST - len(inside))]
        inside.update(ring)


def _fuses(node: fx.Node, state: State, fusible: dict[fx.Node, bool]) -> bool:
    if node not in fusible:
        fusible[node] = node.op in ("call_function", "call_method") and not writes(node) and _loops(node, state)
    return fusible[node]


def _loops(node: fx.Node, state: State) -> bool:
    """Whether all that torch runs for a node is loops that inductor makes itself."""
    value = value_of(node)
    if not isinstance(value, Tensor) and not (isinstance(value, (tuple, list)) and _all_tensors(value)):
        return False
    seen = trace_operators(node, state)
    return seen is not None and all(_is_loop(o) for o in seen.operators)


def _all_tensors(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(v, Tensor) for v in values)


def _is_loop(operator: torch._ops.OpOverload) -> bool:
    if torch.Tag.pointwise in operator.tags or torch.Tag.reduction in operator.tags:
        return True
    schema = operator._schema
    aliases = [r.alias_info for r in schema.returns]
    views = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
    name = schema.name.removeprefix("aten::")
    return views or name in LOOPS or name.endswith("_norm")


def _cut(graph: fx.Graph, inside: set[fx.Node], state: State) -> Region | str:
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    numbers: dict[fx.Node, int | float | bool] = {}
    order = [n for n in graph.nodes if n in inside]
    for node in order:
        for source in node.all_input_nodes:
            if source in inside or source in copies or source in numbers:
                continue
            value = value_of(source)
            if isinstance(value, (int, float)):
                numbers[source] = value
                continue
            if not isinstance(value, Tensor):
                return "it reads a value that is neither a tensor nor a number"
            copies[source] = made.placeholder(f"given_{len(copies)}")
            copies[source].meta["example_value"] = value
    inputs = tuple(copies)
    for node in order:
        copied = made.node_copy(node, lambda n: numbers[n] if n in numbers else copies[n])
        copied.meta = {"example_value": value_of(node)}
        copies[node] = copied
    given = tuple(copies[n] for n in order if any(u not in inside for u in n.users))
    tensors = tuple(n for n in given if isinstance(value_of(n), Tensor))
    if not tensors:
        return "its result is not used"
    made.output(tensors)
    return Region(fx.GraphModule(torch.nn.Module(), made), inputs, copies, state)


def with_copy(region: Region) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """The region's module anew, with its nodes by those of the program's graph."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(region.module.graph, twins)
    graph.output(output)
    return fx.GraphModule(torch.nn.Module(), graph), {n: twins[c] for n, c in region.copies.items()}
