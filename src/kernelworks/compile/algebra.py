"""Algebraic simplification of matrix products in a graph of dynamo's, before anything is benchmarked or compiled.

    sum over n of (x W^T + b)[.., n] = x . (sum over n of W[n]) + sum of b        one product of vectors in place of N
    diag(v) B = v[:, None] * B,  A diag(v) = A * v                                no product of matrices is left

Factors that are numbers, and vectors that are added to each row, may stand between a product and its sum; a mean is a
sum with one factor more. This is done only in float32 and float64, where a sum made first is rounded no more coarsely
than the products were. Nobody else may read the product, and the graph may write nothing in place. If a diagonal's
zeros meet infinities, torch's product gives NaN; here nothing is multiplied by those zeros.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from kernelworks.compile.calls import State, states, value_of, varies, writes
from kernelworks.compile.layouts import laid_as, lie_alike
from kernelworks.contract.tensors import leaves

__all__ = ["simplify_products"]

PRODUCTS = frozenset({torch.matmul, torch.mm, torch.bmm, operator.matmul, Tensor.matmul, Tensor.mm, Tensor.bmm})
SUMS: dict[Any, Callable[..., Tensor]] = {
    torch.sum: torch.sum, torch.mean: torch.mean, Tensor.sum: torch.sum, Tensor.mean: torch.mean
}  # fmt: skip
SCALES = frozenset({operator.mul, operator.truediv, torch.mul, torch.div, Tensor.mul, Tensor.div})
SHIFTS = frozenset({operator.add, operator.sub, torch.add, torch.sub, Tensor.add, Tensor.sub})
DIAGONALS = frozenset({torch.diag, torch.diag_embed, Tensor.diag, Tensor.diag_embed})
EXACT = (torch.float32, torch.float64)


def simplify_products(graph: fx.Graph) -> list[str]:
    """Changes the graph; a line for each product that is gone."""
    said: list[str] = []
    if any(map(writes, graph.nodes)):
        return said  # what a product was made of may be another by the time that its sum is
    at = states(graph)
    for node in list(graph.nodes):
        plain = _plain(node, at)
        made = (_of_sum(graph, node) or _of_diagonal(graph, node)) if plain else None
        if made is not None:
            new, line = made
            if not lie_alike(value_of(new), value_of(node)):
                with graph.inserting_before(node):
                    new = laid_as(graph, new, value_of(node))
                    new.meta["example_value"] = value_of(node)
            node.replace_all_uses_with(new)
            _erase(graph, node)
            said.append(line)
    return said


def _function(node: Any) -> Any:
    """What a node calls: a method as the class has it."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method":
        return getattr(Tensor, str(node.target), None)
    return node.target if node.op == "call_function" else None


def _args(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _plain(node: fx.Node, at: Mapping[fx.Node, State]) -> bool:
    """Whether it makes one tensor of sizes that stay, without autocast."""
    value = value_of(node)
    if not isinstance(value, Tensor) or value.dtype not in EXACT or at[node].autocast:
        return False
    return not any(varies(n) for n in (node, *node.all_input_nodes))


def _erase(graph: fx.Graph, node: Any) -> None:
    """A node that nobody reads any more, and what only it read."""
    if isinstance(node, fx.Node) and not node.users and node.op in ("call_function", "call_method"):
        above = node.all_input_nodes
        graph.erase_node(node)
        for each in above:
            _erase(graph, each)


def _add(graph: fx.Graph, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> fx.Node:
    """A call with what it returns, without data."""
    node = graph.call_function(function, args, kwargs)
    given = fx.map_arg(args, value_of)
    mode = next((t.fake_mode for t in leaves(given) if hasattr(t, "fake_mode")), None)
    with mode or contextlib.nullcontext():
        node.meta["example_value"] = function(*given, **kwargs)
    return node


# ---------------------------------------------------------------- the sum of a product


class _Sum(NamedTuple):
    source: fx.Node
    function: Callable[..., Tensor]
    dims: tuple[int, ...]
    keepdim: bool


def _sum(node: fx.Node) -> _Sum | None:
    """A sum or a mean over some dimensions."""
    function = SUMS.get(_function(node))
    if function is None or not node.args or node.kwargs.keys() - {"dim", "keepdim", "dtype"}:
        return None
    source, dim, keepdim, dtype = (*_args(node), *(None,) * 4)[:4]
    named: dict[str, Any] = dict(node.kwargs)
    dim, keepdim, dtype = (
        named.get(name, value) for name, value in (("dim", dim), ("keepdim", keepdim), ("dtype", dtype))
    )
    value = value_of(source)
    if not isinstance(value, Tensor) or not value.dim() or dtype is not None:
        return None
    every = range(value.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    if not all(isinstance(d, int) for d in every):
        return None
    dims = tuple(d % value.dim() for d in every)
    return _Sum(source, function, dims, bool(keepdim))


def _of_sum(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, str] | None:
    found = _sum(node)
    if found is None:
        return None
    between, source = [], found.source
    while len(source.users) == 1 and (step := _between(source)) is not None:
        between.append(step)
        source = step.source
    if len(source.users) != 1:
        return None
    if value_of(source).dim() - 1 not in found.dims or any(step.along not in (None, -1) for step in between):
        return None
    with graph.inserting_before(node):
        made = _one_column(graph, source, found.function)
        if made is None:
            return None
        for step in reversed(between):
            by = step.by
            if isinstance(by, fx.Node):
                by = _add(graph, found.function, by, -1, True)
            made = _add(graph, step.function, made, by)
        made = _add(graph, found.function, made, list(found.dims), found.keepdim)
    return made, f"a product whose {value_of(source).shape[-1]} columns are summed became one with summed weights"


def _one_column(graph: fx.Graph, node: fx.Node, reduced: Callable[..., Tensor]) -> fx.Node | None:
    """The product with its columns reduced to one, of length 1."""
    factors = _factors(node)
    if factors is None:
        return None
    x, weight, bias, along = factors
    made = _add(graph, torch.matmul, x, _add(graph, reduced, weight, along))
    if bias is not None:
        made = _add(graph, torch.add, made, _add(graph, reduced, bias, 0))
    return _add(graph, torch.unsqueeze, made, -1)


class _Step(NamedTuple):
    source: fx.Node
    function: Callable[..., Tensor]
    by: fx.Node | float
    along: int | None = None  # the one dimension, from the end, along which what is added is no single number


def _between(node: fx.Node) -> _Step | None:
    """A factor that is a number, or a vector that is added everywhere else alike: what becomes of a sum as of its
    terms."""
    function = _function(node)
    if node.kwargs or len(node.args) != 2 or not isinstance(node.args[0], fx.Node):
        return None
    source, by = _args(node)
    if function in SCALES and isinstance(by, (int, float)) and not isinstance(by, bool):
        return _Step(source, function, by)
    wide, vector = value_of(source), value_of(by)
    if function not in SHIFTS or not isinstance(wide, Tensor) or not isinstance(vector, Tensor):
        return None
    if vector.dtype is not wide.dtype or vector.dim() > wide.dim():
        return None
    long = [at for at in range(-vector.dim(), 0) if vector.shape[at] != 1]
    if len(long) != 1 or vector.shape[long[0]] != wide.shape[long[0]]:
        return None
    return _Step(source, function, by, long[0])


def _factors(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None, int] | None:
    """Of a product: the left, the right, what is added to each row, and the dimension of the right along which columns
    lie side by side."""
    function = _function(node)
    if node.kwargs or not all(isinstance(a, fx.Node) or a is None for a in node.args):
        return None
    if function is F.linear and len(node.args) in (2, 3):
        x, weight, bias = (*_args(node), None)[:3]
        return x, weight, bias, 0
    if function in PRODUCTS and len(node.args) == 2:
        x, weight = _args(node)
        if value_of(weight).dim() == 2 and value_of(x).dim() > 1:
            return x, weight, None, 1
    return None


# ---------------------------------------------------------------- the product with a diagonal


def _of_diagonal(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, str] | None:
    if _function(node) not in PRODUCTS or node.kwargs or len(node.args) != 2:
        return None
    left, right = _args(node)
    if not all(isinstance(a, fx.Node) and value_of(a).dim() > 1 for a in (left, right)):
        return None
    for diagonal, other, ahead in ((left, right, True), (right, left, False)):
        values = _diagonal(diagonal)
        if values is None:
            continue
        with graph.inserting_before(node):
            factor = _add(graph, torch.unsqueeze, values, -1 if ahead else -2)
            return _add(graph, torch.mul, other, factor), "a product with a diagonal matrix became elementwise"
    return None


def _diagonal(node: fx.Node) -> fx.Node | None:
    """What lies on the diagonal of a matrix that a node makes of it."""
    if _function(node) not in DIAGONALS or len(node.args) != 1 or node.kwargs:
        return None
    source: Any = node.args[0]
    made, given = value_of(node), value_of(source)
    return source if isinstance(given, Tensor) and made.dim() == given.dim() + 1 else None
