"""The calls in a graph of dynamo's that an op could serve: found by the ops' torch signatures, read as op arguments.

Dynamo's graph holds the functions that a program called, before autograd and before anything is decomposed: a call of
torch's function is one node there, in training too. A torch signature reads the call's arguments as the op's. Under
autocast it reads them as the function would have cast them: torch tells, by running the function on tensors without
data.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.contract.tensors import leaves
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import REJECTION_ERRORS, TorchSignature, torch_signatures

__all__ = [
    "OpCall",
    "OperatorTrace",
    "State",
    "Steps",
    "TensorView",
    "apply_steps",
    "find_op_calls",
    "function_of",
    "insert_steps",
    "make_op_call",
    "name_of",
    "is_call_of",
    "states",
    "trace_operators",
    "value_of",
    "varies",
    "writes",
]  # fmt: skip

VIEWS = frozenset({"t", "transpose", "permute", "view", "expand", "unsqueeze", "squeeze", "detach", "alias", "select",
                   "slice", "as_strided", "_unsafe_view", "reshape"})  # fmt: skip
CAST = "_to_copy"
# The functions of the module operator: those that write, and those that only look so by their names.
WRITERS = frozenset({"setitem", "delitem", "iadd", "imul", "isub", "itruediv", "ifloordiv", "imod", "ipow", "imatmul",
                     "iand", "ior", "ixor", "ilshift", "irshift", "iconcat"})  # fmt: skip
SIGNS = frozenset({"and_", "or_", "not_", "is_"})
SEEN_VALUE_KEY = "kernelworks_seen"  # in a node's meta: its value with the sizes that were seen
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)

# Methods of a tensor and functions of one, each with the arguments behind it.
Steps = tuple[tuple[str | Callable[..., Any], tuple[Any, ...]], ...]


@dataclass(frozen=True)
class State:
    """What holds at a node: by type of device the dtype of autocast, and whether gradients are recorded."""

    autocast: tuple[tuple[str, torch.dtype], ...]
    grad: bool

    @contextlib.contextmanager
    def activate(self, *, grad: bool | None = None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad if grad is None else grad))
            on = dict(self.autocast)
            for device in ("cpu", "cuda"):
                if device in on:
                    stack.enter_context(torch.autocast(device, dtype=on[device], cache_enabled=False))
                elif torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield

    @classmethod
    def current(cls) -> State:
        on = [(d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
        return cls(tuple(on), torch.is_grad_enabled())


@dataclass(frozen=True)
class TensorView:
    """A tensor of a graph as an op is to see it: a node, and the steps that lead from it to the op's argument. They
    are run on what stands for the node here and there, and come into a graph only if a call is replaced."""

    node: fx.Node
    steps: Steps = ()

    def by(self, step: str | Callable[..., Any], *args: Any) -> TensorView:
        return replace(self, steps=(*self.steps, (step, args)))

    def of(self, known: Callable[[fx.Node], Tensor]) -> Tensor:
        """The tensor, of what is known of nodes."""
        return apply_steps(known(self.node), self.steps, known)

    def value(self) -> Tensor:
        """The tensor without data."""
        first: Any = value_of(self.node)
        with first.fake_mode, torch.enable_grad():
            return self.of(value_of)

    def insert(self, graph: fx.Graph, there: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """The node that is the tensor, made where the graph inserts now."""
        return insert_steps(graph, there(self.node), self.steps, there)


def apply_steps(value: Tensor, steps: Steps, known: Callable[[fx.Node], Tensor] | None = None) -> Tensor:
    """A tensor after some steps."""
    for step, args in steps:
        given = (a.of(known) if isinstance(a, TensorView) and known is not None else a for a in args)
        value = getattr(value, step)(*given) if isinstance(step, str) else step(value, *given)
    return value


def insert_steps(
    graph: fx.Graph, node: fx.Node, steps: Steps, there: Callable[[fx.Node], fx.Node] = lambda node: node
) -> fx.Node:
    """The same in a graph."""
    for step, args in steps:
        given = tuple(a.insert(graph, there) if isinstance(a, TensorView) else a for a in args)
        make: Any = graph.call_method if isinstance(step, str) else graph.call_function
        node = make(step, (node, *given))
    return node


@dataclass(frozen=True)
class OpCall:
    """A call that an op reads as its own. ``args`` are the op's, tensors among them without data and in the dtype that
    autocast casts them to, if it does; ``sources`` says for each tensor which node it is, or which view of one, and
    ``parts`` which operators beside pointwise ones torch makes of the call, below autograd.

    Of a call that is written out ``around`` are the views between its sources and ``inside``, which others may read,
    and ``after`` leads from the op's result to ``node``'s. ``blank`` is a mask, and what the program has where by it
    nothing is seen (the op has 0). ``added`` is what the program adds to the scores of its attention beside a mask:
    torch's function takes that, and kernels of ours do not. ``beside`` are nodes that the op makes besides, each with
    the place of its result among the op's, and what leads from that to it.
    """

    node: fx.Node
    op: Op
    args: tuple[Any, ...]
    sources: tuple[fx.Node | TensorView | None, ...]
    state: State
    wanted: tuple[str, ...]
    parts: tuple[str, ...]
    inside: tuple[fx.Node, ...]  # the nodes that make it, of which ``node`` is the last
    around: tuple[fx.Node, ...] = ()
    after: Steps = ()
    blank: tuple[TensorView, TensorView | float] | None = None
    added: TensorView | None = None
    beside: tuple[tuple[fx.Node, int, Steps], ...] = ()

    @property
    def pass_(self) -> str:
        return "training" if self.wanted else "forward"


class OperatorTrace(TorchDispatchMode):
    """The operators that run and make tensors, and the floating-point dtypes that those which compute take."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.operators: list[torch._ops.OpOverload] = []
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _computes(func):
            self.dtypes.update(t.dtype for t in leaves(args) if t.dtype.is_floating_point)
        if any("Tensor" in str(r.type) for r in func._schema.returns):  # no question, of the device say
            self.operators.append(func)
        return func(*args, **(kwargs or {}))


def value_of(node: Any) -> Any:
    """What a node returned as the graph was made, without data: of sizes that vary between calls, those that were seen.
    None if the graph does not say."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("example_value", node.meta.get("val"))
    if not _symbolic(value):
        return value
    if SEEN_VALUE_KEY not in node.meta:
        node.meta[SEEN_VALUE_KEY] = _seen(value)
    return node.meta[SEEN_VALUE_KEY]


def varies(node: fx.Node) -> bool:
    """Whether a node returns other sizes, or another number, in other calls."""
    return _symbolic(node.meta.get("example_value", node.meta.get("val")))


def _symbolic(value: Any) -> bool:
    if isinstance(value, Tensor):
        plain = value.layout is torch.strided
        return plain and any(type(n) is not int for n in (*value.shape, *value.stride(), value.storage_offset()))
    if isinstance(value, (list, tuple)):
        return any(map(_symbolic, value))
    return isinstance(value, NUMBERS)


def _seen(value: Any) -> Any:
    """The value with numbers in the place of symbols, asked of them without a guard; None if one has none yet."""
    if isinstance(value, NUMBERS):
        return value.node.hint
    if isinstance(value, (list, tuple)):
        parts = [_seen(each) if _symbolic(each) else each for each in value]
        return None if any(part is None for part in parts) else tuple(parts)
    sizes, strides = (tuple(n if type(n) is int else n.node.hint for n in its) for its in (value.shape, value.stride()))
    if None in sizes or None in strides or not hasattr(value, "fake_mode"):
        return None
    with value.fake_mode, torch.no_grad():
        made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def argument_values(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A node's arguments with values in the place of nodes; None if one is not known."""
    missing: list[fx.Node] = []

    def value(n: fx.Node) -> Any:
        known = value_of(n)
        if known is None:
            missing.append(n)
        return known

    args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
    return None if missing else (args, dict(kwargs))


def name_of(node: Any) -> str:
    """The name of what a node calls; "" for what is no call."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return ""
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")


def writes(node: fx.Node) -> bool:
    """Whether a node changes what it is given, by the name it has."""
    name = name_of(node)
    inplace = bool(node.kwargs.get("inplace")) or "out" in node.kwargs
    named = name.endswith("_") and not name.endswith("__") and name not in SIGNS
    return inplace or named or name in WRITERS


def function_of(node: fx.Node) -> Callable[..., Any] | None:
    """What a node calls, as a function of its arguments."""
    if node.op == "call_function":
        return node.target if callable(node.target) else None
    return getattr(Tensor, str(node.target), None) if node.op == "call_method" else None


def trace_operators(node: fx.Node, state: State) -> OperatorTrace | None:
    """What a node's function runs on tensors without data; None where it cannot be said."""
    given, function = argument_values(node), function_of(node)
    if given is None or function is None:
        return None
    mode = next((t.fake_mode for t in leaves((*given[0], *given[1].values())) if hasattr(t, "fake_mode")), None)
    seen = OperatorTrace()
    try:
        with mode or contextlib.nullcontext(), torch.random.fork_rng(devices=[]), state.activate(grad=False), seen:
            function(*given[0], **given[1])
    except Exception:  # whatever a function of somebody else's says of such tensors
        return None
    return seen


# ---------------------------------------------------------------- the state along a graph


def states(graph: fx.Graph) -> dict[fx.Node, State]:
    """The state that holds at each node, from the one that holds now."""
    now = State.current()
    left: dict[fx.Node, State] = {}
    found = {}
    for node in graph.nodes:
        found[node] = now
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name == "_enter_autocast":
            left[node] = now
            device, dtype, enabled = (*node.args, None, None, None)[:3]
            on = dict(now.autocast)
            on.pop(device, None)
            if enabled is not False:
                on[device] = dtype or torch.get_autocast_dtype(device)
            now = State(tuple(sorted(on.items())), now.grad)
        elif name == "_exit_autocast":
            now = State(left.get(node.args[0], now).autocast, now.grad)
        elif name == "_set_grad_enabled":
            now = State(now.autocast, bool(node.args[0]))
    return found


# ---------------------------------------------------------------- reading calls


@functools.lru_cache(1)
def _table(count: int) -> tuple[dict[Any, TorchSignature], dict[str, TorchSignature]]:
    """The torch signatures by torch's function, and by the name of its operator."""
    known = torch_signatures().values()
    return {s.function: s for s in known}, {s.operator: s for s in known}


def _signature_of(node: fx.Node) -> tuple[TorchSignature, bool] | None:
    """The torch signature of a node's call, and whether it is torch's function itself."""
    functions, operators = _table(len(OPS))
    if node.op == "call_method":
        found = operators.get(str(node.target))
        return (found, False) if found else None
    if node.op != "call_function":
        return None
    if (known := functions.get(node.target)) is not None:
        return known, True
    name = getattr(node.target, "__name__", "")
    if name in operators and getattr(torch, name, None) is node.target:
        return operators[name], False
    return None


def is_call_of(node: fx.Node, op: Op) -> bool:
    """Whether a node calls torch's function of an op: nothing is written out, and ``find_op_calls`` reads it."""
    known = _signature_of(node)
    return known is not None and known[0].op is op


def _bound(
    torch_signature: TorchSignature, whole: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...] | str | None:
    """The op's arguments, a reason, or None if the call is no such call after all."""
    if not whole:  # x.softmax(-1), torch.softmax(x, -1): the operator's own names, which may stand elsewhere
        names = _operator_names(torch_signature.operator)
        if len(args) > len(names):
            return None
        theirs = dict(zip(names[1:], args[1:], strict=False)) | kwargs
        if not args or not theirs.keys() <= torch_signature.name_set:
            return None
        args, kwargs = args[:1], theirs
    try:
        return None if torch_signature.non_bool_argument(args, kwargs) else torch_signature.ours(*args, **kwargs)
    except (TypeError, IndexError, AttributeError):
        return None


@functools.cache
def _operator_names(name: str) -> tuple[str, ...]:
    packet = getattr(torch.ops.aten, name, None)
    overload = getattr(packet, "int", None) or getattr(packet, "default", None)
    return tuple(a.name for a in overload._schema.arguments) if overload is not None else ()


def find_op_calls(graph: fx.Graph, refused: Callable[[str, fx.Node, str], None]) -> Iterator[OpCall]:
    """The calls of a graph that an op reads as its own. ``refused(op, node, why)`` is told of those that match a torch
    signature and that the op does not serve."""
    at = states(graph)
    for node in graph.nodes:
        known = _signature_of(node)
        if known is None or not known[0].op.contract.returned_outputs:
            continue
        torch_signature, whole = known
        given = argument_values(node)
        if given is None:
            refused(torch_signature.op.name, node, "the graph does not tell its arguments")
            continue
        first = given[0][0] if given[0] else next(iter(given[1].values()), None)
        if not isinstance(first, Tensor) or not isinstance(value_of(node), Tensor):
            continue
        with torch.set_grad_enabled(at[node].grad):
            asked = _bound(torch_signature, whole, *given)
        if asked is None:
            continue
        made = asked if isinstance(asked, str) else _called(node, torch_signature.op, asked, at[node])
        if isinstance(made, str):
            refused(torch_signature.op.name, node, made)
        else:
            yield made


def _called(node: fx.Node, op: Op, asked: tuple[Any, ...], state: State) -> OpCall | str:
    if any(varies(n) and not isinstance(value_of(n), Tensor) for n in node.all_input_nodes):
        return "one of its arguments is a number that varies between calls"
    sources = tuple(_source(a, node.all_input_nodes) if isinstance(a, Tensor) else None for a in asked)
    if any(isinstance(a, Tensor) and s is None for a, s in zip(asked, sources, strict=True)):
        return "one of its arguments is no tensor of the graph"
    seen = trace_operators(node, state)
    if seen is None or not seen.operators:
        return "the operators that it runs are unknown"
    lowered = _cast_to(asked, seen, state)
    if isinstance(lowered, str):
        return lowered
    args = asked
    if lowered is not None:
        mode = next(t.fake_mode for t in leaves(asked) if hasattr(t, "fake_mode"))
        with mode, torch.no_grad():
            args = tuple(_floating(a, lowered) for a in asked)
    parts = tuple(n for o in seen.operators if (n := _computes(o)) and torch.Tag.pointwise not in o.tags)
    return make_op_call(node, op, asked, sources, state, args=args, parts=parts)


def make_op_call(
    node: fx.Node, op: Op, asked: tuple[Any, ...], sources: tuple[fx.Node | TensorView | None, ...], state: State, *,
    args: tuple[Any, ...] = (), parts: tuple[str, ...] = (), inside: tuple[fx.Node, ...] = (),
) -> OpCall | str:  # fmt: skip
    """What was ``asked`` of an op as a call of it, or the reason why the op does not serve it. ``args`` are the same as
    autocast casts them."""
    names, args = op.passes["forward"].names, args or asked
    wanted: tuple[str, ...] = ()
    if state.grad and op.differentiable:
        wanted = tuple(n for n, a in zip(names, asked, strict=True) if any(t.requires_grad for t in leaves((a,))))
        if not set(wanted) <= set(op.contract.differentiable):
            return "the op does not compute a gradient that is asked for"
    try:
        op.contract.check(**dict(zip(names, args, strict=True)))
    except REJECTION_ERRORS as error:
        return str(error)
    return OpCall(node, op, args, sources, state, wanted, parts, inside or (node,))


def _computes(operator: torch._ops.OpOverload) -> str:
    """The name of an operator that computes tensors of tensors; "" for views, casts and questions."""
    name, schema = str(operator._schema.name).removeprefix("aten::"), operator._schema
    tensors = all(any("Tensor" in str(v.type) for v in values) for values in (schema.returns, schema.arguments))
    return name if tensors and name not in VIEWS and name != CAST else ""


def _source(value: Tensor, nodes: Sequence[fx.Node]) -> fx.Node | None:
    """The node that a tensor is, or that it is with more dimensions ahead (a mask)."""
    found = next((node for node in nodes if value_of(node) is value), None)
    return found or next((node for node in nodes if _widens(value, value_of(node))), None)


def _widens(value: Tensor, whole: Any) -> bool:
    if not isinstance(whole, Tensor) or whole.dtype != value.dtype:
        return False
    more = value.dim() - whole.dim()
    same = more >= 0 and tuple(value.shape) == ((1,) * more + tuple(whole.shape))
    return same and value.untyped_storage()._cdata == whole.untyped_storage()._cdata


def _floating(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype.is_floating_point else value


def _cast_to(asked: tuple[Any, ...], seen: OperatorTrace, state: State) -> torch.dtype | str | None:
    """The dtype that autocast casts the arguments to; None where it leaves them, a reason where it is not that."""
    tensors = list(leaves(asked))
    lower = dict(state.autocast).get(tensors[0].device.type)
    own = {t.dtype for t in tensors if t.dtype.is_floating_point}
    if lower is None or not seen.dtypes or seen.dtypes == own:
        return None
    if len(seen.dtypes) == 1:
        return next(iter(seen.dtypes))
    if lower not in seen.dtypes:
        return "it computes in several dtypes under autocast"
    return None if own == {lower} else lower  # taken to pieces, some of which are in float32
