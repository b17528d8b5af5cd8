"""Products with a kernel's matrix that a program writes out: ``torch.exp(-torch.cdist(x, y) ** 2 / (2 * l ** 2)) @ v``,
or of differences.

All that leads from two tensors of points to the matrix is run in float64 on drawn points, and so is the definition of
the op. If both agree, the product is one call of the op. A length scale that is a number in the program is the one with
which the definition gives the same K.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OpCall, State, TensorView, make_op_call, name_of, value_of, varies, writes
from kernelworks.compile.constants import unwritten
from kernelworks.compile.decomposed_ops import AGREES
from kernelworks.compile.small_eval import CASTS, RESHAPES, run_nodes
from kernelworks.dispatch.op import OPS, Op
from kernelworks.templates.pairwise import Pairwise

__all__ = ["kernel_products"]

# What leads to a kernel's matrix: an exponential of distances, or of differences.
STEPS = RESHAPES | CASTS | {
    "getitem", "unsqueeze", "squeeze", "transpose", "permute", "neg", "mul", "rmul", "truediv", "rtruediv", "div",
    "add", "radd", "sub", "rsub", "pow", "rpow", "square", "sqrt", "sum", "cdist", "exp", "norm", "vector_norm",
    "reciprocal", "clone",
}  # fmt: skip
PRODUCTS = frozenset({"matmul", "mm"})
MOST = 24  # One has at most so many nodes.
FEW, OTHERS = 4, 5  # A trial has so many rows and columns.
SMALLEST, LARGEST = 1e-6, 1e6  # of the length scales that are looked for, in units of a trial's distances
HALVINGS = 100


def kernel_products(graph: fx.Graph, at: Mapping[fx.Node, State]) -> Iterator[OpCall]:
    """The products of a graph with a matrix that an op need not store."""
    ops = [op for op in OPS.values() if isinstance(op.template, Pairwise)]
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if name_of(node).strip("_") not in PRODUCTS or len(node.args) != 2 or node.kwargs or at[node].autocast:
            continue
        matrix, weights = node.args
        if not isinstance(matrix, fx.Node) or not isinstance(weights, fx.Node) or varies(node):
            continue
        sizes = [value.shape if isinstance(value := value_of(n), Tensor) else () for n in (matrix, weights)]
        if [len(size) for size in sizes] == [2, 2] and all(map(all, sizes)):
            made = _read(node, matrix, weights, at, order, ops)
            if made is not None:
                yield made


def _cone(matrix: fx.Node, at: Mapping[fx.Node, State]) -> list[fx.Node]:
    """The matrix's node and what it is made of by known steps, in no order."""
    found = {matrix: None}
    waiting = [matrix]
    while waiting and len(found) <= MOST:
        for source in waiting.pop().all_input_nodes:
            known = name_of(source).strip("_") in STEPS and at[source] == at[matrix] and not writes(source)
            if source not in found and known:
                found[source] = None
                waiting.append(source)
    return list(found)


def _read(
    node: fx.Node, matrix: fx.Node, weights: fx.Node, at: Mapping[fx.Node, State], order: Mapping[fx.Node, int],
    ops: Sequence[Op],
) -> OpCall | None:  # fmt: skip
    cone = sorted(_cone(matrix, at), key=order.__getitem__)
    names = {name_of(n).strip("_") for n in cone}
    if name_of(matrix).strip("_") not in STEPS or not names & {"exp"} or not names & {"cdist", "sub"}:
        return None
    if len(cone) > MOST or any(user is not node and user not in cone for n in cone for user in n.users):
        return None  # who reads K besides has it stored anyway
    sources = tuple(dict.fromkeys(s for n in cone for s in n.all_input_nodes if s not in cone))
    points = [s for s in sources if _is_points(value_of(s), value_of(weights))]
    single = [s for s in sources if _is_single(value_of(s))]
    if len(points) + len(single) != len(sources) or not 1 <= len(points) <= 2 or len(single) > 1:
        return None
    if not unwritten(list(itertools.islice(node.graph.nodes, order[cone[0]], order[node])), (*sources, weights)):
        return None
    for x, y in itertools.product(points, repeat=2) if len(points) == 1 else itertools.permutations(points):
        rows, columns = value_of(x).shape[0], value_of(y).shape[0]
        if (rows, columns) != tuple(value_of(matrix).shape):
            continue
        for op in ops:
            scale = _length_scale(op, x, y, single, cone)
            if scale is None:
                continue
            views = (TensorView(x), TensorView(y), TensorView(weights), scale)
            asked = tuple(view.value() for view in views)
            made = make_op_call(node, op, asked, views, at[node], inside=(*cone, node))
            if isinstance(made, OpCall) and value_of(node).dtype == asked[0].dtype:
                return made
    return None


def _is_points(value: Any, weights: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2 and bool(value.numel()) and value.dtype == weights.dtype


def _is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.dtype.is_floating_point


def scalar_like(x: Tensor, value: float) -> Tensor:
    """A length scale that a program has as a number."""
    return x.new_full((), value, dtype=torch.float32)


def _length_scale(
    op: Op, x: fx.Node, y: fx.Node, single: Sequence[fx.Node], cone: Sequence[fx.Node]
) -> TensorView | None:
    """The length scale with which the op's K is the program's, on drawn points; None if there is none."""
    generator = torch.Generator("cpu").manual_seed(0)
    width = value_of(x).shape[1]

    def drawn(rows: int) -> Tensor:
        return torch.randn(rows, width, dtype=torch.float64, device="cpu", generator=generator)

    known = {x: drawn(FEW), y: drawn(OTHERS)}
    known |= {s: torch.full(value_of(s).shape, 1.37, dtype=torch.float64, device="cpu") for s in single}
    try:
        with torch.no_grad(), State((), False).activate():
            made = run_nodes(cone, known)
            if made.shape != (known[x].shape[0], known[y].shape[0]):
                return None
            value = 1.37 if single else _number(op, known[x], known[y], made)
            want = _matrix(op, known[x], known[y], value)
            if not bool(((made - want).abs() <= AGREES * want.abs().max()).all()):
                return None
    except Exception:  # it cannot be run so
        return None
    return TensorView(single[0]) if single else TensorView(x).by(scalar_like, value)


def _matrix(op: Op, x: Tensor, y: Tensor, length_scale: float) -> Tensor:
    unit = torch.eye(y.shape[0], dtype=torch.float64, device="cpu")
    k: Tensor = op.contract.reference(x, y, unit, torch.tensor(length_scale, dtype=torch.float64, device="cpu"))[0]
    return k


def _number(op: Op, x: Tensor, y: Tensor, made: Tensor) -> float:
    """The length scale of which the op has the same K: k grows with it, so the sum of K is halved in on."""
    low, high = SMALLEST, LARGEST
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _matrix(op, x, y, middle).sum() < made.sum() else (low, middle)
    return high
