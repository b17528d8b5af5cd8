"""Attention that a program writes out in smaller functions: scores of queries and keys, scaled, capped and masked,
their softmax, times the values.

The steps are read off the graph backwards from the second product, however the products are written (``matmul``,
``bmm``, ``baddbmm``, ``einsum``) and whatever is viewed, cast or repeated between. What they make is then compared in
float64 with the definition of the op, as in ``by_hand``. If a query sees nothing the op gives 0, and what the program
gives is put in. What is added to the scores and is no mask stays added, by torch's function for the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.attention_heads import Operand, Product, Sizes, ahead_of, operand, product, result_steps
from kernelworks.compile.attention_mask import CombinedMask, Mask, combine_masks, is_low
from kernelworks.compile.calls import (
    OpCall,
    State,
    Steps,
    apply_steps,
    make_op_call,
    name_of,
    trace_operators,
    value_of,
    varies,
)
from kernelworks.compile.constants import number, possible_values, unwritten
from kernelworks.compile.decomposed_ops import AGREES, first_of
from kernelworks.compile.small_eval import RESHAPES, run_nodes
from kernelworks.dispatch.signature import TorchSignature, by_operator

__all__ = ["attentions"]

SAME = frozenset({"_to_copy", "clone"})  # and nothing at all, of a dropout that is off
VIEWS = frozenset({"view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "reshape", "alias"})
SOFTMAX = "_softmax"
MADE_OF = ("bmm", SOFTMAX, "bmm")  # what torch makes of it without an operator for the whole
SCALES = {"mul": 1, "imul": 1, "truediv": -1, "div": -1, "itruediv": -1}
SHIFTS = {"add": 1, "radd": 1, "iadd": 1, "sub": -1, "isub": -1}
MOST = 24  # There are at most so many nodes from one product to the other.
FEW, MORE = 5, 7  # queries and keys of a trial
MOST_ELEMENTS = 1 << 25

Constants = dict[fx.Node, Tensor | None]


@dataclass(frozen=True)
class _Read:
    """What was read so far, from the last step to the first."""

    nodes: tuple[fx.Node, ...]
    scale: float = 1.0
    masks: tuple[Mask, ...] = ()
    softmax: bool = False
    softcap: float | None = None
    shapes: tuple[torch.Size, ...] = ()

    def through(self, node: fx.Node, **changed: Any) -> _Read:
        return replace(self, nodes=(*self.nodes, node), shapes=(*self.shapes, value_of(node).shape), **changed)


def attentions(graph: fx.Graph, at: Mapping[fx.Node, State]) -> Iterator[OpCall]:
    """The attentions of a graph that are written out in smaller functions."""
    torch_signature = by_operator("scaled_dot_product_attention")
    if torch_signature is None:
        return
    order = {node: place for place, node in enumerate(graph.nodes)}
    constants: Constants = {}
    for node in list(graph.nodes):
        last = product(node)
        if last is None or last.plus is not None or last.alpha != 1:
            continue
        for steps, first in _walk(last.left, _Read((node,)), at):
            if any(at[n] != at[node] for n in steps.nodes):
                continue
            made = _call(first, last, steps, torch_signature, at[node], order, constants)
            if made is not None:
                yield made
                break


# ---------------------------------------------------------------- reading


def _walk(now: Any, read: _Read, at: Mapping[fx.Node, State]) -> Iterator[tuple[_Read, Product]]:
    """The ways to read what leads to the weights, each with the product that makes the scores."""
    if not isinstance(now, fx.Node) or not isinstance(value_of(now), Tensor) or len(read.nodes) > MOST:
        return
    first = product(now)
    if first is not None:
        if read.softmax and not (first.plus and read.softcap):
            added = Mask(first.plus, value_of(now).shape, "added", first.beta * read.scale) if first.plus else None
            masks = read.masks if added is None else (*read.masks, added)
            yield read.through(now, masks=masks, scale=read.scale * first.alpha), first
        return
    if not now.args:
        return
    made_by = _made_by(now, at[now])
    if SOFTMAX in made_by and made_by <= SAME | {SOFTMAX} and not read.softmax:
        yield from _walk(now.args[0], read.through(now, softmax=True), at)
    elif _idle(now) or made_by <= SAME | VIEWS:
        yield from _walk(now.args[0], read.through(now), at)
    elif made_by == {"tanh"}:  # what is behind it gives its magnitude, and what is ahead is divided by that
        if read.softmax and read.softcap is None and read.scale > 0:
            yield from _walk(now.args[0], read.through(now, softcap=read.scale), at)
    elif read.softmax:
        for before, masks, scale in _readings(now, read.scale):
            if masks and read.softcap is not None:
                continue  # hidden ahead of the cap: what is hidden still counts
            more = read.through(now, masks=(*read.masks, *masks), scale=scale)
            yield from _walk(before, more, at)


def _plain(node: fx.Node) -> str:
    """One name for a function, a method, a sign and what writes in place."""
    return name_of(node).strip("_")


def _idle(node: fx.Node) -> bool:
    """Whether it is a dropout of nothing."""
    named = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    return name_of(node) == "dropout" and bool(named.get("p", 0.5) == 0 or named.get("training", True) is False)


def _made_by(node: fx.Node, state: State) -> frozenset[str]:
    """The names of the operators that make what a node returns."""
    seen = trace_operators(node, state) if first_of(node) is not None else None
    return frozenset({"?"} if seen is None else (o._schema.name.removeprefix("aten::") for o in seen.operators))


def _readings(node: fx.Node, scale: float) -> Iterator[tuple[Any, tuple[Mask, ...], float]]:
    """What scores may have been ahead of a step, how it masks them, and what they are times."""
    name, args, shape = _plain(node), node.args, value_of(node).shape
    if node.kwargs:
        return
    if name == "masked_fill" and len(args) == 3:
        fill = _fill(args[2], scale, node)
        if fill is not None and isinstance(args[1], fx.Node):
            yield args[0], (Mask(args[1], shape, "hidden", fill),), scale
    elif name == "where" and len(args) == 3:
        condition, one, other = args if node.op == "call_function" else (args[1], args[0], args[2])
        for kind, scores, low in (("seen", one, other), ("hidden", other, one)):
            fill = _fill(low, scale, node)
            if fill is not None and isinstance(condition, fx.Node):
                yield scores, (Mask(condition, shape, kind, fill),), scale
    elif name in SCALES and len(args) == 2:
        for scores, by in (args, args[::-1]) if SCALES[name] == 1 else (args,):
            factor = number(by)
            if factor and isinstance(scores, fx.Node):
                yield scores, (), scale * factor ** SCALES[name]
    elif name in SHIFTS and len(args) == 2:
        for scores, added in (args, args[::-1]) if SHIFTS[name] == 1 else (args,):
            if isinstance(scores, fx.Node) and isinstance(added, fx.Node):
                yield scores, (Mask(added, shape, "added", SHIFTS[name] * scale),), scale


def _fill(value: Any, scale: float, node: fx.Node) -> float | None:
    """The number in the place of a score that none can reach; None if it is no such number."""
    found = possible_values(value)
    fill = next(iter(found)) * scale if found is not None and len(found) == 1 else 0.0
    return fill if scale > 0 and is_low(fill, value_of(node).dtype) else None


# ---------------------------------------------------------------- as a call of the op


@dataclass(frozen=True)
class _Parts:
    """What a call is made of: queries, keys and values, what is masked, and what leads to the program's result."""

    operands: tuple[Operand, Operand, Operand]
    sizes: Sizes
    scale: float
    masked: CombinedMask
    after: Steps
    dtype: torch.dtype
    softcap: float | None


def _call(
    first: Product, last: Product, steps: _Read, torch_signature: TorchSignature, state: State,
    order: Mapping[fx.Node, int], constants: Constants,
) -> OpCall | None:  # fmt: skip
    inside = sorted(dict.fromkeys(steps.nodes), key=order.__getitem__)
    within = set(inside)
    if not all(user in within for n in inside[:-1] for user in n.users):
        return None  # else it would be made twice
    for ends in (_ends(inside[-1]), ()):
        parts = _parts(first, last, steps, state, (*inside, *ends), constants)
        if parts is None:
            continue
        nodes = (*inside, *ends)
        passed = dict.fromkeys(n for each in parts.operands for n in each.passed)
        around = tuple(sorted((n for n in passed if n not in nodes), key=order.__getitem__))
        cone = sorted((*around, *nodes), key=order.__getitem__)
        if any(map(varies, cone)) and _sized(parts):
            return None
        if not _undisturbed(cone, parts, order) or not _agrees(cone, parts, first, torch_signature):
            continue
        made = _found(nodes, around, parts, torch_signature, state)
        if made is not None:
            return made
    return None


def _ends(node: fx.Node) -> tuple[fx.Node, ...]:
    """A view and casts behind the second product that nobody goes around."""
    found: list[fx.Node] = []
    while len(node.users) == 1:
        node = next(iter(node.users))
        value = value_of(node)
        if not isinstance(value, Tensor) or name_of(node) not in RESHAPES | {"to", "half", "bfloat16", "float"}:
            break
        found.append(node)
        if len(found) == 2:
            break
    return tuple(found)


def _parts(
    first: Product, last: Product, steps: _Read, state: State, nodes: Sequence[fx.Node], constants: Constants
) -> _Parts | None:
    (left, right, scores), (weights, of_values, result) = first.letters, last.letters
    summed, columns = (set(left) & set(right)) - set(scores), (set(weights) & set(of_values)) - set(result)
    if len(scores) < 2 or len(summed) != 1 or len(columns) != 1 or columns != {weights[-1]}:
        return None
    q, k, d = scores[-2], scores[-1], next(iter(summed))
    keys, queries = (first.right, right), (first.left, left)
    if k in left:
        keys, queries = queries, keys
    dv = set(of_values) - set(weights)
    if q in keys[1] or k in queries[1] or q not in queries[1] or len(dv) != 1 or weights[-2] in of_values:
        return None
    value = value_of(nodes[-1])
    widths = first.sizes
    batch = tuple(widths[n] for n in scores[:-2])
    sizes = _sizes(batch, steps.shapes, [n for node in (first.left, last.right) for n in ahead_of(node)])
    then = tuple(last.sizes[n] for n in weights[:-2])
    if sizes is None or torch.Size(batch).numel() != torch.Size(then).numel():
        return None
    cast = bool(dict(state.autocast).get(value.device.type))
    alike = widths[q] == widths[k]  # then one node may be both
    few, more = min(widths[q], MORE if alike else FEW), min(widths[k], MORE)
    made = (
        operand(*queries, scores[:-2], q, d, sizes, value.dtype, length=few, cast=cast),
        operand(*keys, scores[:-2], k, d, sizes, value.dtype, length=more, cast=cast),
        operand(last.right, of_values, weights[:-2], weights[-1], next(iter(dv)), replace(sizes, batch=then),
                value.dtype, length=more, cast=cast),
    )  # fmt: skip
    if made[0] is None or made[1] is None or made[2] is None or made[2].scale != 1:
        return None
    scale = steps.scale * made[0].scale * made[1].scale
    trained = state.grad and any(value_of(each.viewed.node).requires_grad for each in made if each is not None)
    masked = combine_masks(steps.masks, sizes, (few, more), value.dtype, trained=trained, constants=constants)
    if masked is None or (masked.added is not None and steps.softcap is not None):
        return None
    after = result_steps(result, weights[:-2], weights[-2], next(iter(dv)), replace(sizes, batch=then))
    whole = (sizes.B, sizes.H, widths[q], value.shape[-1])
    if len(nodes) > len(steps.nodes) and tuple(value.shape) == whole:
        after = ()  # a view behind it parts the batch again
    return _Parts((made[0], made[1], made[2]), sizes, scale, masked, after, value.dtype, steps.softcap)


def _sizes(batch: tuple[int, ...], shapes: Sequence[torch.Size], ahead: Sequence[fx.Node]) -> Sizes | None:
    """How many entries and heads there are, of whatever says it: the products, the scores on the way, the operands."""
    for known in (batch, *(tuple(shape[:-2]) for shape in shapes)):
        if len(known) in (2, 3):
            return Sizes(batch, int(known[0]), int(torch.Size(known[1:]).numel()))
    if not batch:
        return Sizes(batch, 1, 1)
    if len(batch) > 1:
        return None
    for shape in (value_of(n).shape for n in ahead):
        if len(shape) == 4 and shape[0] and batch[0] % shape[0] == 0 and batch[0] // shape[0] in shape[1:3]:
            return Sizes(batch, int(shape[0]), batch[0] // int(shape[0]))
    return Sizes(batch, batch[0], 1)


def _sized(parts: _Parts) -> bool:
    """Whether a number of this call's sizes stands in it."""
    steps = [*parts.after, *(step for each in parts.operands for step in each.viewed.steps)]
    return any(name == "unflatten" for name, _ in steps) or parts.masked.sized


def _undisturbed(cone: Sequence[fx.Node], parts: _Parts, order: Mapping[fx.Node, int]) -> bool:
    """Whether what the op reads in the place of the last of some nodes is what they read in theirs."""
    within = set(cone)
    between = itertools.islice(cone[0].graph.nodes, order[cone[0]], order[cone[-1]])
    sources = [*(each.viewed.node for each in parts.operands), *(mask.node for mask in parts.masked.masks)]
    return unwritten([n for n in between if n not in within], sources)


def _found(
    nodes: tuple[fx.Node, ...],
    around: tuple[fx.Node, ...],
    parts: _Parts,
    torch_signature: TorchSignature,
    state: State,
) -> OpCall | None:
    views = [each.viewed for each in parts.operands]
    values = [view.value() for view in views]
    mask = parts.masked.seen.value() if parts.masked.seen is not None else None
    asked = _asked(torch_signature, values, mask, parts)
    if isinstance(asked, str):
        return None
    known = {id(value): view for value, view in zip(values, views, strict=True)}  # what is none of them is the mask
    sources = tuple(known.get(id(a), parts.masked.seen) if isinstance(a, Tensor) else None for a in asked)
    if any(isinstance(a, Tensor) and source is None for a, source in zip(asked, sources, strict=True)):
        return None
    args = asked
    if any(value.dtype != parts.dtype for value in values):
        mode: Any = value_of(views[0].node)
        with mode.fake_mode, torch.no_grad():
            args = tuple(a.to(parts.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in asked)
    made = make_op_call(nodes[-1], torch_signature.op, asked, sources, state, args=args, parts=MADE_OF, inside=nodes)
    if not isinstance(made, OpCall):
        return None
    lengths = values[0].shape[1] // values[2].shape[1], values[1].shape[2]
    blank = parts.masked.blank((views[0], views[1], views[2]), parts.scale, lengths)
    return replace(made, around=around, after=parts.after, blank=blank, added=parts.masked.added)


def _asked(
    torch_signature: TorchSignature, tensors: Sequence[Tensor], mask: Tensor | None, parts: _Parts
) -> tuple[Any, ...] | str:
    q, k, v = tensors
    grouped = q.shape[1] != k.shape[1]
    asked = torch_signature.ours(
        q, k, v, attn_mask=mask, is_causal=parts.masked.causal, scale=parts.scale, enable_gqa=grouped
    )
    if isinstance(asked, str) or parts.softcap is None:
        return asked
    return tuple((dict(zip(torch_signature.op_names, asked, strict=True)) | {"softcap": parts.softcap}).values())


def _agrees(cone: Sequence[fx.Node], parts: _Parts, first: Product, torch_signature: TorchSignature) -> bool:
    """Whether a trial of the nodes gives what the op gives."""
    generator = torch.Generator().manual_seed(0)
    drawn: dict[fx.Node, Tensor] = {}
    for each in parts.operands:
        if torch.Size(each.small).numel() > MOST_ELEMENTS:
            return False
        drawn[each.viewed.node] = torch.randn(each.small, dtype=torch.float64, device="cpu", generator=generator)
    try:
        with torch.no_grad(), State((), False).activate():
            drawn |= parts.masked.draw_trial_masks(generator)
            if first.plus is None and first.unread is not None:
                drawn[first.unread] = torch.zeros(1, 1, 1, dtype=torch.float64, device="cpu")
            made = run_nodes(cone, drawn)
            q, k, v = (each.viewed.of(drawn.__getitem__) for each in parts.operands)
            grouped = q.shape[1] != k.shape[1]
            mask = parts.masked.trial(drawn)
            function: Any = torch_signature.function
            if parts.softcap is None:
                given = function(q, k, v, attn_mask=mask, scale=parts.scale, enable_gqa=grouped)
            else:  # of which torch's function knows nothing
                given = torch_signature.op.contract.reference(
                    q, k, v, scale=parts.scale, mask=mask, softcap=parts.softcap
                )[0]  # fmt: skip
            want = apply_steps(given, parts.after)
        return made.shape == want.shape and bool(((made - want).abs() <= AGREES * want.abs().max()).all())
    except Exception:  # it cannot be run so: it is none
        return False
