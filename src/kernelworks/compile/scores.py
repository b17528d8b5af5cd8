"""Attention that a program spells out: scores of queries and keys, scaled and masked, their softmax, times the values.

The steps are read off the graph backwards from the second product, and what they make is compared in float64 with the
definition of the op, as in ``by_hand``. A mask of what is hidden is turned round by a node more, and where a query
sees nothing NaN is put in, as the softmax of its scores is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.by_hand import AGREES, Cone, first_of, run_cone
from kernelworks.compile.calls import Found, State, ran, read, value_of
from kernelworks.op import Op
from kernelworks.spelling import Spelling, by_operator

__all__ = ["attentions"]

PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
SCALES = {"mul": 1, "__mul__": 1, "truediv": -1, "div": -1}
SAME = frozenset({"_to_copy", "clone"})  # and nothing at all, of a dropout that is off
SOFTMAX = "_softmax"
MADE_OF = ("bmm", SOFTMAX, "bmm")  # what torch makes of it without an operator for the whole


@dataclass
class _Steps:
    """What was read so far, from the last step to the first."""

    nodes: list[fx.Node]
    q: Any = None
    k: Any = None
    v: Any = None
    scale: float = 1.0
    mask: Any = None
    hides: bool = False  # the mask says what is hidden, not what is seen
    softmax: bool = False


def attentions(graph: fx.Graph, at: Mapping[fx.Node, State]) -> Iterator[Found]:
    """The attentions of a graph that are spelled out."""
    spelling = by_operator("scaled_dot_product_attention")
    if spelling is None:
        return
    for node in list(graph.nodes):
        steps = _read(node, at) if _name(node) in PRODUCTS else None
        if steps is not None and all(at[n] == at[node] for n in steps.nodes):
            made = _call(steps, spelling, at[node])
            if made is not None:
                yield made


# ---------------------------------------------------------------- reading


def _name(node: Any) -> str:
    if not isinstance(node, fx.Node):
        return ""
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")


def _read(node: fx.Node, at: Mapping[fx.Node, State]) -> _Steps | None:
    steps = _Steps([node])
    now, steps.v = node.args[:2] if len(node.args) == 2 else (None, None)
    while isinstance(now, fx.Node) and now.args:
        name = _name(now)
        if name in PRODUCTS and len(now.args) == 2:
            steps.nodes.append(now)
            steps.q = _unscaled(now.args[0], steps)
            steps.k = _untransposed(now.args[1], steps)
            return steps if steps.softmax and steps.k is not None else None
        rest, made_by = now.args[0], _made_by(now, at[now])
        if SOFTMAX in made_by and made_by <= SAME | {SOFTMAX} and not steps.softmax:
            steps.softmax = True
        elif name == "masked_fill" and steps.mask is None and len(now.args) == 3 and _hidden(now.args[2]):
            steps.mask, steps.hides = now.args[1], True
        elif name == "where" and steps.mask is None and len(now.args) == 3 and _hidden(now.args[2]):
            steps.mask, rest = now.args[:2]
        elif name in SCALES and len(now.args) == 2 and isinstance(now.args[1], (int, float)):
            steps.scale *= float(now.args[1]) ** SCALES[name]
        elif not made_by <= SAME:
            return None
        steps.nodes.append(now)
        now = rest
    return None


def _hidden(value: Any) -> bool:
    """Whether a score is none. A finite one still counts where all of a row are so low."""
    return isinstance(value, float) and value == -math.inf


def _made_by(node: fx.Node, state: State) -> frozenset[str]:
    """The names of the operators that make what a node returns."""
    seen = ran(node, state) if first_of(node) is not None else None
    return frozenset({"?"} if seen is None else (o._schema.name.removeprefix("aten::") for o in seen.operators))


def _unscaled(node: Any, steps: _Steps) -> Any:
    if _name(node) in SCALES and isinstance(node.args[1], (int, float)):
        steps.nodes.append(node)
        steps.scale *= float(node.args[1]) ** SCALES[_name(node)]
        return node.args[0]
    return node


def _untransposed(node: Any, steps: _Steps) -> Any:
    """The keys, as they were before the last two dimensions changed places."""
    if _name(node) != "transpose" or len(node.args) != 3:
        return None
    source, *swapped = node.args
    if sorted(int(dim) % value_of(node).dim() for dim in swapped) != [
        value_of(node).dim() - 2,
        value_of(node).dim() - 1,
    ]:
        return None
    steps.nodes.append(node)
    return _unscaled(source, steps)


# ---------------------------------------------------------------- as a call of the op


def _call(steps: _Steps, spelling: Spelling, state: State) -> Found | None:
    given = [steps.q, steps.k, steps.v, *([steps.mask] if steps.mask is not None else [])]
    if not all(isinstance(n, fx.Node) and isinstance(value_of(n), Tensor) for n in given):
        return None
    order = {n: place for place, n in enumerate(steps.nodes[0].graph.nodes)}
    nodes = tuple(sorted(dict.fromkeys(steps.nodes), key=order.__getitem__))
    alone = all(user in nodes for n in nodes[:-1] for user in n.users)  # else it would be made twice
    if any(value_of(n).dim() != 4 for n in given[:3]) or not alone:
        return None
    cone = Cone(nodes, tuple(dict.fromkeys(given)), ())
    try:
        if not _agrees(cone, given, steps, spelling):
            return None
    except Exception:  # it cannot be run so: it is none
        return None
    mask = _seen(steps, nodes[-1])
    products = {id(value_of(n)): n for n in given[:3]}
    asked = _asked(spelling, [value_of(n) for n in (*given[:3], mask) if n is not None], steps)
    sources = tuple(products.get(id(a), mask) if isinstance(a, Tensor) else None for a in asked)
    op: Op = spelling.op
    made = read(nodes[-1], op, asked, sources, state, parts=MADE_OF, inside=nodes)
    if not isinstance(made, Found) or value_of(nodes[-1]).dtype != asked[0].dtype:
        return None
    return replace(made, seen=mask)  # the softmax of a line of nothing is no number


def _asked(spelling: Spelling, tensors: Sequence[Tensor], steps: _Steps) -> tuple[Any, ...]:
    q, k, v, *mask = tensors
    found = spelling.ours(q, k, v, *mask, scale=steps.scale)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _seen(steps: _Steps, node: fx.Node) -> fx.Node | None:
    """The mask of what is seen."""
    mask: fx.Node | None = steps.mask
    if mask is None or not steps.hides:
        return mask
    value = value_of(mask)
    with node.graph.inserting_before(node):
        made = node.graph.call_method("logical_not", (mask,))
    with value.fake_mode:
        made.meta["example_value"] = value.logical_not()
    return made


def _agrees(cone: Cone, given: Sequence[fx.Node], steps: _Steps, spelling: Spelling) -> bool:
    generator = torch.Generator().manual_seed(0)
    sizes = {size: place + 2 for place, size in enumerate({s for n in given for s in value_of(n).shape if s != 1})}
    drawn: dict[fx.Node, Tensor] = {}
    for node in dict.fromkeys(given):
        shape = [sizes.get(s, 1) for s in value_of(node).shape]
        drawn[node] = torch.randn(shape, dtype=torch.float64, device="cpu", generator=generator)
    if steps.mask is not None:
        if value_of(steps.mask).dtype is not torch.bool:
            return False
        drawn[steps.mask] = drawn[steps.mask] > 0
        drawn[steps.mask][..., 0] = not steps.hides  # a row that sees nothing is no number
    with torch.no_grad(), State((), False).entered():
        made = run_cone(cone, [drawn[n] for n in cone.wide])
        tensors = [drawn[n] for n in given]
        if steps.hides:
            tensors[3] = tensors[3].logical_not()
        want = spelling.op.contract.reference(*_asked(spelling, tensors, steps))[0]
    return made.shape == want.shape and bool(((made - want).abs() <= AGREES * want.abs().max()).all())
