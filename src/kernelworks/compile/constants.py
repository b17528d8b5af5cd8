"""What a tensor of a graph is sure to hold: the numbers that it may have, and its value if only constants make it.

A mask that is added to scores says what is seen and what is not if the program can have made it only of zeros and of a
number so low that no score counts beside it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OperatorTrace, function_of, name_of, value_of, varies, writes

__all__ = ["constant", "number", "possible_values", "unwritten"]

MOST = 64  # At most so many nodes are asked.
MOST_NUMBERS = 16
MOST_ELEMENTS = 1 << 26

FILL_VALUES = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}
FULL = {"full": 1, "full_like": 1, "new_full": 2}  # These are the places of the number among the arguments.
SAME = frozenset({
    "view", "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "transpose", "permute", "contiguous", "clone",
    "flatten", "unflatten", "broadcast_to", "detach", "repeat", "narrow", "select", "chunk", "getitem",
    "repeat_interleave", "swapaxes", "view_as",
})  # fmt: skip
CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as"})
PARTIAL_VIEWS = frozenset({"split", "unbind", "tensor_split", "getattr", "diagonal", "t", "unfold", "movedim"})
WITH_ZERO = frozenset({"triu", "tril"})
BINARY_OPS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add, "radd": operator.add, "sub": operator.sub, "mul": operator.mul, "rmul": operator.mul,
    "rsub": lambda a, b: b - a,
}  # fmt: skip
RANDOM_OPS = frozenset({"rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "rand_like",
                   "randn_like", "dropout", "empty", "empty_like", "new_empty"})  # fmt: skip


def _plain(node: fx.Node) -> str:
    """The name of what a node computes: one for a function, a method and a sign."""
    name = name_of(node)
    return name.strip("_") if name.startswith("__") else name


# ---------------------------------------------------------------- numbers


def number(value: Any) -> float | None:
    """The number that an argument is, or that a tensor of no dimensions holds, made of numbers alone."""
    if isinstance(value, (int, float)):
        return float(value)
    made = value_of(value)
    if not isinstance(made, Tensor) or made.dim():
        return None
    known = constant(value)
    return None if known is None or known.dtype is torch.bool or known.is_complex() else float(known)


def constant(node: fx.Node) -> Tensor | None:
    """What a node returns in every call, if it is made of no input and nothing drawn; else None."""
    order: list[fx.Node] = []
    if not _of_constants(node, order, set()) or len(order) > MOST:
        return None
    known: dict[fx.Node, Any] = {}
    try:
        with torch.no_grad(), torch._guards.tracing(None), torch.random.fork_rng(devices=[]), OperatorTrace() as ran:
            for each in order:
                args, kwargs = fx.map_arg((each.args, each.kwargs), known.__getitem__)
                args, kwargs = fx.node.map_aggregate((args, kwargs), _on_cpu)
                function: Any = function_of(each)
                known[each] = function(*args, **kwargs)
    except Exception:  # it needs what is not here
        return None
    made = known[node]
    if any(torch.Tag.nondeterministic_seeded in each.tags for each in ran.operators):
        return None
    return made if isinstance(made, Tensor) and made.shape == value_of(node).shape else None


def _of_constants(node: fx.Node, order: list[fx.Node], seen: set[fx.Node]) -> bool:
    if node in seen:
        return True
    value = value_of(node)
    if (
        not _torchs(node)
        or name_of(node) in RANDOM_OPS
        or value is None
        or varies(node)
        or writes(node)
        or len(order) > MOST
    ):
        return False
    if isinstance(value, Tensor) and (value.numel() > MOST_ELEMENTS or _written(node)):
        return False
    seen.add(node)
    if not all(_of_constants(source, order, seen) for source in node.all_input_nodes):
        return False
    order.append(node)
    return True


def _torchs(node: fx.Node) -> bool:
    """Whether a node calls torch's own function, a method or a sign: another may return what it likes."""
    name = name_of(node)
    if node.op == "call_method":
        return hasattr(Tensor, name)
    known = (getattr(place, name, None) for place in (torch, operator, torch.nn.functional))
    return node.op == "call_function" and (node.target is getattr or any(node.target is each for each in known))


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu")):
        return torch.device("cpu")
    return value


def _written(node: fx.Node) -> bool:
    """Whether a tensor, or a view of it, is written to after it was made."""
    waiting, found = [node], {node}
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if writes(user) and (user.args[0] is node or "out" in user.kwargs):
                return True
            if user not in found and name_of(user) in SAME | CASTS:
                found.add(user)
                waiting.append(user)
    return False


def unwritten(between: Sequence[fx.Node], sources: Iterable[fx.Node]) -> bool:
    """Whether nobody ``between`` writes to what any of ``sources`` is, or is a view of."""
    written = [_root(_first(node)) for node in between if writes(node)]
    if any("out" in node.kwargs for node in between):
        return False
    roots = {_root(source) for source in sources}
    given = any(root.op in ("placeholder", "get_attr") for root in roots)  # one may be a view of another
    return not any(w is None or w in roots or (given and w.op in ("placeholder", "get_attr")) for w in written)


def _root(node: Any) -> Any:
    """What a node may be a view of."""
    while isinstance(node, fx.Node) and (name_of(node) in SAME | CASTS | PARTIAL_VIEWS or writes(node)):
        node = _first(node)
    return node if isinstance(node, fx.Node) else None


def _first(node: fx.Node) -> Any:
    return node.args[0] if node.args else None


# ---------------------------------------------------------------- sets of numbers


def possible_values(node: Any) -> frozenset[float] | None:
    """The numbers of which each element of a tensor is one; None if that is not known to be a few."""
    return _held(node, [MOST])


def _held(node: Any, left: list[int]) -> frozenset[float] | None:
    if isinstance(node, (bool, int, float)):
        return frozenset({float(node)})
    value = value_of(node)
    left[0] -= 1
    if not isinstance(value, Tensor) or value.is_complex() or left[0] < 0 or writes(node) or _written(node):
        return None
    if value.dtype is torch.bool:
        return frozenset({0.0, 1.0})
    found = _made(node, left) if node.op in ("call_function", "call_method") else None
    if found is None:
        one = number(node)
        found = None if one is None else frozenset({one})
    if found is None or len(found) > MOST_NUMBERS or any(math.isnan(n) for n in found):
        return None
    return frozenset(float(torch.tensor(n).to(value.dtype)) + 0.0 for n in found)  # as its dtype rounds them; no -0


def _made(node: fx.Node, left: list[int]) -> frozenset[float] | None:
    name, args = _plain(node), node.args
    if name in FILL_VALUES:
        return frozenset({FILL_VALUES[name]})
    if name in FULL:
        place = FULL[name]
        fill = args[place] if len(args) > place else node.kwargs.get("fill_value")
        return _held(fill, left)
    if not args:
        return None
    if name in SAME | CASTS:
        return _held(args[0], left)
    if name in WITH_ZERO:
        return _with(_held(args[0], left), frozenset({0.0}))
    if name == "neg":
        found = _held(args[0], left)
        return None if found is None else frozenset(-n for n in found)
    if name == "masked_fill" and len(args) == 3:
        return _with(_held(args[0], left), _held(args[2], left))
    if name == "where" and len(args) == 3:
        return _with(*(_held(each, left) for each in _chosen(node)))
    if name in BINARY_OPS and len(args) == 2 and not node.kwargs:
        both = [_held(each, left) for each in args]
        return None if None in both else frozenset(_between(BINARY_OPS[name], both))
    return None


def _chosen(node: fx.Node) -> tuple[Any, Any]:
    """What ``where`` chooses from."""
    first, second, third = node.args
    return (first, third) if node.op == "call_method" else (second, third)


def _with(one: frozenset[float] | None, other: frozenset[float] | None) -> frozenset[float] | None:
    return None if one is None or other is None else one | other


def _between(function: Callable[[float, float], float], both: list[Any]) -> Iterator[float]:
    for a, b in itertools.islice(itertools.product(*both), MOST_NUMBERS**2):
        yield function(a, b)
