"""Rotary embeddings that a program writes out: of halves (``rotate_half``, ``chunk`` and ``cat``), of neighbours
(slices, ``stack``), or as a product of complex numbers.

All that leads to a node, is linear in one tensor and reads only tables besides is run in float64 on drawn numbers, and
so is the definition of the op. If both agree for a tensor of queries and for one of keys, with the same tables, the two
are one call of the op.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OpCall, State, Steps, TensorView, make_op_call, name_of, value_of, varies, writes
from kernelworks.compile.constants import unwritten
from kernelworks.compile.decomposed_ops import AGREES
from kernelworks.compile.small_eval import CASTS, RESHAPES, run_nodes
from kernelworks.dispatch.op import OPS, Op

__all__ = ["rotations"]

PATTERN = "rotary"
LINEAR = RESHAPES | CASTS | {
    "getitem", "neg", "mul", "rmul", "add", "radd", "sub", "cat", "concat", "stack", "chunk", "split", "unbind",
    "tensor_split", "transpose", "permute", "unsqueeze", "squeeze", "view_as_complex", "view_as_real",
    "repeat_interleave", "select", "narrow", "clone",
}  # fmt: skip
LAST = frozenset({"add", "radd", "cat", "concat", "type_as", "to", "float", "half", "bfloat16"}) | RESHAPES
MOST = 32  # One has at most so many nodes.
CANDIDATES = 6
FEW = 5  # A trial has so many positions.
HEADS_OF = {1: (0, 1, 2, 3), 2: (0, 2, 1, 3)}  # by the dimension of the heads: what makes it the second


@dataclass(frozen=True)
class _Turn:
    """One tensor that is turned. ``tables`` are cosines and sines."""

    node: fx.Node
    source: fx.Node
    inside: tuple[fx.Node, ...]
    tables: tuple[TensorView, TensorView]
    heads: int  # the dimension of the heads
    interleaved: bool

    @property
    def view(self) -> TensorView:
        return TensorView(self.source, _of_heads(self.heads))


def _of_heads(dim: int) -> Steps:
    return () if dim == 1 else (("transpose", (1, 2)),)


def rotations(graph: fx.Graph, at: Mapping[fx.Node, State]) -> Iterator[OpCall]:
    """The pairs of queries and keys that a graph turns by the same tables."""
    op = next((op for op in OPS.values() if op.pattern == PATTERN), None)
    if op is None:
        return
    order = {node: place for place, node in enumerate(graph.nodes)}
    claimed: set[fx.Node] = set()
    turns: list[_Turn] = []
    for node in reversed(list(graph.nodes)):
        turn = _turned(node, op, at, order) if node not in claimed else None
        if turn is not None and claimed.isdisjoint(turn.inside):
            claimed.update(turn.inside)
            turns.append(turn)
    turns.reverse()
    while turns:
        first = turns.pop(0)
        second = next((each for each in turns if _alike(first, each, at)), None)
        if second is not None:
            turns.remove(second)
            made = _pair(first, second, op, at, order)
            if made is not None:
                yield made


def _alike(one: _Turn, other: _Turn, at: Mapping[fx.Node, State]) -> bool:
    same, others = ([(_said(view.node), view.steps) for view in turn.tables] for turn in (one, other))
    return (
        (same, one.interleaved) == (others, other.interleaved)
        and at[one.node] == at[other.node]
        and one.source is not other.source
    )


def _said(node: fx.Node, depth: int = 8) -> str:
    """What a node computes of what, in words: the same for nodes that return the same."""
    if node.op not in ("call_function", "call_method") or not depth or any(map(writes, node.users)):
        return node.name
    args = fx.map_arg((node.args, node.kwargs), lambda n: _said(n, depth - 1))
    return f"{node.op} {node.target}{args}"


# ---------------------------------------------------------------- one tensor


def _plain(node: fx.Node) -> str:
    name = name_of(node)
    return name.strip("_") if name.startswith("__") else name


def _turned(node: fx.Node, op: Op, at: Mapping[fx.Node, State], order: Mapping[fx.Node, int]) -> _Turn | None:
    value = value_of(node)
    if _plain(node) not in LAST or not isinstance(value, Tensor) or value.dim() != 4 or varies(node):
        return None
    if not value.dtype.is_floating_point or not value.numel():
        return None
    cone = _cone(node, at)
    names = {_plain(n) for n in cone}
    if "mul" not in names or not names & {"neg", "sub", "view_as_complex"}:
        return None
    known = [*cone, *dict.fromkeys(source for n in cone for source in n.all_input_nodes)]
    fits = [n for n in known if n is not node and _looks_as(value, value_of(n))]
    for source in sorted(dict.fromkeys(fits), key=order.__getitem__, reverse=True)[:CANDIDATES]:
        inside = _between(source, node, cone, order)
        others = dict.fromkeys(s for n in inside for s in n.all_input_nodes if s not in inside and s is not source)
        alone = all(user in inside for n in inside[:-1] for user in n.users)
        tables = {_said(n): n for n in others}
        if inside and alone and 1 <= len(tables) <= 2:
            made = _recognised(node, source, inside, tuple(others), op)
            if made is not None:
                return made
    return None


def _looks_as(value: Tensor, other: Any) -> bool:
    """Whether it may be turned into ``value``, in its own dtype or, by tables of float32, in a wider one."""
    if not isinstance(other, Tensor) or other.shape != value.shape or not other.dtype.is_floating_point:
        return False
    return other.dtype == value.dtype or torch.promote_types(other.dtype, value.dtype) == value.dtype


def _cone(node: fx.Node, at: Mapping[fx.Node, State]) -> list[fx.Node]:
    """What a node is made of by steps that are linear, the nearest first."""
    found = {node: None}
    waiting = [node]
    while waiting and len(found) < MOST:
        for source in waiting.pop(0).all_input_nodes:
            if source not in found and _plain(source) in LINEAR and at[source] == at[node] and not writes(source):
                found[source] = None
                waiting.append(source)
    return list(found)


def _between(
    source: fx.Node, last: fx.Node, cone: Sequence[fx.Node], order: Mapping[fx.Node, int]
) -> tuple[fx.Node, ...]:
    """The nodes of a cone that are made of ``source``, in order."""
    inside: dict[fx.Node, None] = {}
    for node in sorted(cone, key=order.__getitem__):
        if node is not source and any(s is source or s in inside for s in node.all_input_nodes):
            inside[node] = None
    return tuple(inside) if last in inside else ()


def _recognised(
    node: fx.Node, source: fx.Node, inside: tuple[fx.Node, ...], others: tuple[fx.Node, ...], op: Op
) -> _Turn | None:
    shape = value_of(source).shape
    for heads, interleaved, half in itertools.product(HEADS_OF, (False, True), (False, True)):
        tables = {_said(other): other for other in reversed(others)}
        read_as = [_table(other, shape, heads, interleaved=interleaved, half=half) for other in tables.values()]
        if any(not each for each in read_as):
            continue
        views = [view for each in read_as for view in each]
        for cos, sin in itertools.permutations(views, 2) if len(views) == 2 else ():
            turn = _Turn(node, source, inside, (cos, sin), heads, interleaved)
            if _agrees(turn, others, op):
                return turn
    return None


def _table(node: fx.Node, shape: torch.Size, heads: int, *, interleaved: bool, half: bool) -> tuple[TensorView, ...]:
    """A table as the op takes it, [L, R] or [B, L, R]: one, or the two that a complex one holds; none if it is no
    table of positions. ``half`` says that it holds an angle for each pair, not for each element."""
    value = value_of(node)
    if not isinstance(value, Tensor) or not 2 <= value.dim() <= 4:
        return ()
    length = shape[2 if heads == 1 else 1]
    sizes = [1] * (4 - value.dim()) + list(value.shape)
    if sizes[heads] != 1 or sizes[3 - heads] != length or sizes[0] not in (1, shape[0]):
        return ()
    view = TensorView(node)
    if value.dim() > 4 - heads:  # the dimension of the heads is there
        view = view.by("select", heads - 4, 0)
    if value.is_complex():
        parts: tuple[TensorView, ...] = (view.by(torch.real), view.by(torch.imag))
    elif value.dtype.is_floating_point:
        parts = (view,)
    else:
        return ()
    if value.is_complex() > half or sizes[3] * (2 if half else 1) > shape[3]:
        return ()
    if not half:
        return parts
    ahead = (1,) * (len(view.value().shape) - 1)
    return tuple(p.by("repeat_interleave", 2, -1) if interleaved else p.by("repeat", *ahead, 2) for p in parts)


def _small(node: fx.Node, shape: torch.Size, dims: tuple[int, ...]) -> list[int]:
    """The shape of a tensor in a trial: fewer entries and positions."""
    sizes = [int(n) for n in value_of(node).shape]
    ahead = 4 - len(sizes)
    for dim, most in zip(dims, (2, FEW), strict=True):
        if dim >= ahead and sizes[dim - ahead] == shape[dim] != 1:
            sizes[dim - ahead] = min(most, shape[dim])
    return sizes


def _agrees(turn: _Turn, others: Sequence[fx.Node], op: Op) -> bool:
    generator = torch.Generator().manual_seed(0)
    shape = value_of(turn.source).shape
    drawn: dict[fx.Node, Tensor] = {}
    alike: dict[str, Tensor] = {}
    for each in (turn.source, *others):
        kind = torch.complex128 if value_of(each).is_complex() else torch.float64
        sizes = _small(each, shape, (0, 3 - turn.heads))
        drawn[each] = alike.setdefault(_said(each), torch.randn(sizes, dtype=kind, device="cpu", generator=generator))
    try:
        with torch.no_grad(), State((), False).activate():
            made = run_nodes(turn.inside, drawn)
            x, cos, sin = (view.of(drawn.__getitem__) for view in (turn.view, *turn.tables))
            want = op.contract.reference(x, x, cos, sin, turn.interleaved)[0].permute(HEADS_OF[turn.heads])
            return made.shape == want.shape and bool(((made - want).abs() <= AGREES * want.abs().max()).all())
    except Exception:  # it cannot be run so
        return False


# ---------------------------------------------------------------- queries and keys


def _pair(one: _Turn, other: _Turn, op: Op, at: Mapping[fx.Node, State], order: Mapping[fx.Node, int]) -> OpCall | None:
    """Both in one call, in the place of the one of them where all is there that the other reads, too."""
    earlier, later = sorted((one, other), key=lambda turn: order[turn.node])
    sources = (earlier.source, later.source, *(view.node for view in earlier.tables))
    moved = _ahead_of(earlier.node, sources, order)
    if moved is not None:
        for each in moved:
            earlier.node.prepend(each)
        anchor, beside = earlier, later
    elif all(order[user] > order[later.node] for user in earlier.node.users):
        anchor, beside = later, earlier
    else:
        return None
    inside = (*beside.inside, *anchor.inside)
    places = [order[n] for n in inside]
    if not unwritten(list(itertools.islice(anchor.node.graph.nodes, min(places), max(places))), sources):
        return None
    views = (anchor.view, beside.view, *anchor.tables)
    asked: tuple[Any, ...] = (*(view.value() for view in views), anchor.interleaved)
    dtypes = {value_of(turn.node).dtype for turn in (anchor, beside)}
    if len(dtypes) != 1:
        return None
    mode: Any = value_of(anchor.source)
    with mode.fake_mode, torch.no_grad():
        args = (*(t.to(*dtypes) for t in asked[:2]), *asked[2:])
    made = make_op_call(anchor.node, op, asked, (*views, None), at[anchor.node], args=args, inside=inside)
    if not isinstance(made, OpCall):
        return None
    return replace(made, after=_of_heads(anchor.heads), beside=((beside.node, 1, _of_heads(beside.heads)),))


def _ahead_of(node: fx.Node, sources: Sequence[fx.Node], order: Mapping[fx.Node, int]) -> tuple[fx.Node, ...] | None:
    """The views behind a node that have to stand ahead of it for ``sources`` to be known there; None if more than
    views would have to."""
    moved: set[fx.Node] = set()
    waiting = [s for s in sources if order[s] > order[node]]
    while waiting:
        each = waiting.pop()
        if each.op not in ("call_function", "call_method") or _plain(each) not in LINEAR or len(moved) > MOST:
            return None
        if any(map(writes, (each, *each.users))) or node in each.all_input_nodes:
            return None
        moved.add(each)
        waiting += [s for s in each.all_input_nodes if order[s] > order[node] and s not in moved]
    return tuple(sorted(moved, key=order.__getitem__))
