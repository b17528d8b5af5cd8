"""Ops that a program writes out in torch's smaller functions (``x * rsqrt(x.pow(2).mean(-1, True) + eps) * w``): found
by what they compute, however that is written.

All that lies between a node and one or two tensors is a *cone*. If it reduces or takes elementary functions, it
is run in float64, whatever it casts to, on drawn numbers of two magnitudes, and so is the definition of each op that
takes such tensors, with the numbers that stand in the cone. A cone is the op if the two agree to float32's rounding.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OpCall, State, function_of, is_call_of, make_op_call, trace_operators, value_of
from kernelworks.contract.arguments import Argument, Dim, Number, Word
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import OPS, Op

__all__ = ["AGREES", "by_hand", "first_of"]

MOST = 16  # A cone has at most so many nodes.
LONGEST = 8192  # A line that it is tried on has at most so many elements.
SCALES = (1.0, 0.01)  # The numbers that it is tried on have these scales; at the smaller one an eps shows.
AGREES = 2.0**-23
SMALL = 0.1  # An eps is less than this.
# Beside these, a cone only adds and multiplies, or holds a cast alone.
SIMPLE_OPS = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "_to_copy", "clone", "detach", "where"})
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "max", "var", "std", "var_mean", "square", "logsumexp"})
CAST = frozenset({"_to_copy"})
CASTS = frozenset({"float", "half", "bfloat16", "double", "contiguous"})  # These methods cast.


@dataclass(frozen=True)
class Cone:
    """What lies between tensors and a node, in order; ``wide`` and ``vectors`` are the tensors that it reads."""

    nodes: tuple[fx.Node, ...]
    wide: tuple[fx.Node, ...]
    vectors: tuple[fx.Node, ...]


def by_hand(graph: fx.Graph, at: Mapping[fx.Node, State]) -> Iterator[OpCall]:
    """The calls of ops in a graph that are written out, the last first. No two share a node that makes them. A call of
    torch's function of an op is not written out."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    operators = _Operators(at)
    claimed: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if node in claimed or not operators.tells(node):
            continue
        for cone in reversed(list(_cones(node, order, operators))):
            if any(operators.telling(n) for n in cone.nodes) and claimed.isdisjoint(cone.nodes):
                made = _recognised(cone, at[node])
                if made is not None and not (made.inside == (node,) and is_call_of(node, made.op)):
                    claimed.update(made.inside)
                    yield made
                    break


class _Operators:
    """What nodes run, each asked once."""

    def __init__(self, at: Mapping[fx.Node, State]) -> None:
        self.at = at
        self.known: dict[fx.Node, frozenset[str] | None] = {}

    def of(self, node: fx.Node) -> frozenset[str] | None:
        """The names of the operators of a node that makes numbers element by element or line by line; else None."""
        if node not in self.known:
            self.known[node] = self._of(node)
        return self.known[node]

    def _of(self, node: fx.Node) -> frozenset[str] | None:
        value = first_of(node)
        seen = trace_operators(node, self.at[node]) if value is not None and value.is_floating_point() else None
        if seen is None:
            return None
        names = set()
        for operator in seen.operators:
            name = str(operator._schema.name).removeprefix("aten::")
            pure = not operator._schema.is_mutable and torch.Tag.nondeterministic_seeded not in operator.tags
            loops = torch.Tag.pointwise in operator.tags or name in REDUCTIONS or name in ("_to_copy", "clone")
            if not (pure and loops):
                return None
            names.add(name)
        return frozenset(names)

    def tells(self, node: fx.Node) -> bool:
        return isinstance(value_of(node), Tensor) and value_of(node).dim() > 1 and bool(self.of(node))

    def telling(self, node: fx.Node) -> bool:
        return not (self.of(node) or SIMPLE_OPS) <= SIMPLE_OPS


def first_of(node: fx.Node) -> Tensor | None:
    """What a node returns, or the first of it (of a maximum and where it lies)."""
    value = value_of(node)
    value = value[0] if isinstance(value, tuple) and value else value
    return value if isinstance(value, Tensor) else None


def _cones(node: fx.Node, order: Mapping[fx.Node, int], operators: _Operators) -> Iterator[Cone]:
    """The cones of a node that read one or two tensors beside vectors: of a product those first that read one of its
    factors as it is (a gate), the smallest first."""
    factors = [n for n in node.all_input_nodes if isinstance(value_of(n), Tensor) and value_of(n).dim() > 1]
    for factor in factors if len(factors) == 2 else ():
        yield from _from(node, {factor}, order, operators)
    yield from _from(node, set(), order, operators)


def _from(
    node: fx.Node, fixed: set[fx.Node], order: Mapping[fx.Node, int], operators: _Operators
) -> Iterator[Cone]:  # fmt: skip
    """The cones of a node, the latest of the tensors they read taken to pieces one after the other, but for ``fixed``
    ones and what is no loop."""
    open_, inside = {node}, list[fx.Node]()
    vectors: dict[fx.Node, None] = {}
    state = operators.at[node]
    while len(inside) < MOST:
        fixed |= {n for n in open_ if operators.of(n) is None or operators.at[n] != state}
        if len(fixed) > 2 or open_ <= fixed:
            return
        last = max(open_ - fixed, key=order.__getitem__)
        open_.discard(last)
        inside.append(last)
        for source in last.all_input_nodes:
            value = first_of(source)
            if value is None:
                return
            if value.dim() > 1:
                open_.add(source)
            else:
                vectors[source] = None
        if len(open_) in (1, 2) and all(isinstance(value_of(n), Tensor) for n in open_) and _closed(inside, operators):
            wide = tuple(sorted(open_, key=order.__getitem__))
            yield Cone(tuple(sorted(inside, key=order.__getitem__)), wide, tuple(vectors))


def _closed(inside: Sequence[fx.Node], operators: _Operators) -> bool:
    """Whether nobody else reads what the nodes before the last make, but for casts: else it would be made twice."""
    within = set(inside)
    return all(user in within for n in inside[1:] if operators.of(n) != CAST for user in n.users)


# ---------------------------------------------------------------- which op


def _recognised(cone: Cone, state: State) -> OpCall | None:
    known = _op_of(_described(cone), cone)
    if known is None:
        return None
    name, places = known
    nodes = (*cone.wide, *cone.vectors)
    sources = tuple(nodes[place] if isinstance(place, int) else None for place, _ in places)
    asked = tuple(
        number if source is None else value_of(source) for source, (_, number) in zip(sources, places, strict=True)
    )
    made = make_op_call(cone.nodes[-1], OPS[name], asked, sources, state, inside=cone.nodes)
    if isinstance(made, str):
        return None
    result = made.op.forward_shapes(made.args)
    first = result if isinstance(result, Tensor) else result[0]
    return made if first.dtype == value_of(made.node).dtype else None


def _described(cone: Cone) -> str:
    """A cone in words: the same for cones that compute the same of tensors of as many dimensions and as long lines."""
    numbers = {node: f"%{place}" for place, node in enumerate((*cone.wide, *cone.vectors, *cone.nodes))}
    looks = [tuple(_small(value_of(n))) for n in (*cone.wide, *cone.vectors)]
    steps = [(str(n.target), fx.map_arg((n.args, n.kwargs), lambda a: numbers[a])) for n in cone.nodes]
    return repr((looks, len(cone.wide), steps))


Places = tuple[tuple[int | None, Any], ...]  # of an op's arguments: the tensor that each is, or its value
_verdicts: dict[str, tuple[str, Places] | None] = {}


def _op_of(described: str, cone: Cone) -> tuple[str, Places] | None:
    """The op that a cone is, and what its arguments are."""
    if described not in _verdicts:
        try:
            _verdicts[described] = _tried(cone)
        except Exception:  # it cannot be run so: it is no op that is known here
            _verdicts[described] = None
    return _verdicts[described]


def _tried(cone: Cone) -> tuple[str, Places] | None:
    with torch.no_grad(), State((), False).activate():
        drawn = [_drawn(cone, scale) for scale in SCALES]
        results = [_run_cone(cone, values) for values in drawn]
        if not all(bool(r.isfinite().all()) for r in results):
            return None
        for name, arguments in _candidates().items():
            for places in _calls(arguments, cone):
                if _agree(OPS[name], places, drawn, results):
                    return name, places
    return None


def _agree(op: Op, places: Places, drawn: Sequence[Sequence[Tensor]], results: Sequence[Tensor]) -> bool:
    for values, result in zip(drawn, results, strict=True):
        made = op.contract.reference(*(number if at is None else values[at] for at, number in places))[0]
        if made.shape != result.shape or not bool(((made - result).abs() <= AGREES * made.abs().max()).all()):
            return False
    return True


def _is_known(argument: Argument) -> bool:
    """Whether a call's argument of this kind can be looked for in a cone."""
    return _is_wide(argument) or _is_vector(argument) or isinstance(argument, (Number, Word, Dim))


def _is_wide(argument: Argument) -> bool:
    return isinstance(argument, T) and argument.shape.startswith("...")


def _is_vector(argument: Argument) -> bool:
    return isinstance(argument, T) and len(argument.dimensions) == 1 and not _is_wide(argument)


@functools.cache
def _candidates() -> dict[str, Mapping[str, Argument]]:
    """The arguments of the ops that can be recognised so: those whose op template has only arguments of these kinds."""
    found = {}
    for name in OPS:
        arguments = getattr(OPS[name].template, "arguments", {})
        if arguments and all(_is_known(argument) for argument in arguments.values()):
            found[name] = arguments
    return found


def _calls(arguments: Mapping[str, Argument], cone: Cone) -> Iterator[Places]:
    """The calls of an op that a cone may be: every way to hand it all the cone's tensors, with the cone's numbers."""
    literals = list(_literals(cone))
    dims = value_of(cone.nodes[-1]).dim()
    wide, vectors = range(len(cone.wide)), range(len(cone.wide), len(cone.wide) + len(cone.vectors))
    choices: list[list[tuple[int | None, Any]]] = []
    for argument in arguments.values():
        if isinstance(argument, T) and not _is_vector(argument):
            none = [(None, None)] if argument.optional else []
            choices.append([*((at, None) for at in wide), *none])
        elif _is_vector(argument):
            choices.append([*((at, None) for at in vectors), (None, None)])
        elif isinstance(argument, Number):
            choices.append([(None, float(n)) for n in {*literals, 0.0} if 0 <= n < SMALL])
        elif isinstance(argument, Word):
            choices.append([(None, word) for word in argument.words])
        else:
            choices.append([(None, n) for n in dict.fromkeys(literals) if type(n) is int and -dims <= n < dims])
    for places in itertools.product(*choices):
        used = [at for at, _ in places if at is not None]
        if len(used) == len(set(used)) == len(wide) + len(vectors):
            yield places


def _literals(cone: Cone) -> Iterator[int | float]:
    found: list[int | float] = []

    def look(value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(value)
        return value

    for node in cone.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), look)
    yield from found


# ---------------------------------------------------------------- running a cone


def _small(value: Tensor) -> Iterator[int]:
    """The sizes that a tensor is tried with: the last as it is, so that numbers of elements are right."""
    for place, size in enumerate(value.shape):
        after = value.dim() - place
        yield size if size == 1 or after == 1 else after


def _drawn(cone: Cone, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [value_of(n) for n in (*cone.wide, *cone.vectors)]
    if max(v.shape[-1] if v.dim() else 1 for v in values) > LONGEST:
        raise ValueError("its lines are too long to be tried")
    return [
        scale ** (v.dim() > 1) * torch.randn(*_small(v), dtype=torch.float64, device="cpu", generator=generator)
        for v in values
    ]


def _run_cone(cone: Cone, values: Sequence[Tensor]) -> Tensor:
    known: dict[fx.Node, Any] = dict(zip((*cone.wide, *cone.vectors), values, strict=True))
    for node in cone.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        args, kwargs = fx.node.map_aggregate((args, kwargs), _in_float64)
        function: Any = function_of(node)
        known[node] = args[0] if node.op == "call_method" and node.target in CASTS else function(*args, **kwargs)
    result: Tensor = known[cone.nodes[-1]]
    return result


def _in_float64(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
