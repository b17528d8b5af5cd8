"""An expression from torch's graph of a function: operators by their rules, views as views of the arguments.

What has no rule is refused with its name and the line that asked for it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from kernelworks.contract.bounds.call import words
from kernelworks.fuse import reshaping
from kernelworks.fuse.expression import ELEMENTS, ROWS, SUMS, Expression, Input, Output
from kernelworks.fuse.reshaping import ArgumentView
from kernelworks.fuse.rules import ACCEPTED_FUNCTIONS, RULES, StaticNumberError
from kernelworks.fuse.trace import FuseError
from kernelworks.fuse.values import Value, apply_function, as_truth, number_value

__all__ = ["LoweredGraph", "NumberText", "Result", "Stream", "lower_graph"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.bool)
LARGE_LITERAL = 32  # whole numbers from here on are sizes as a rule: given at each call, so that one kernel serves all
CONSTANTS = words(
    """full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones empty_like scalar_tensor"""
)
IDENTITIES = ("clone", "detach", "alias", "contiguous", "lift_fresh_copy", "lift_fresh")
NUMBER_OPERATORS = {
    operator.add: "({} + {})", operator.sub: "({} - {})", operator.mul: "({} * {})", operator.truediv: "({} / {})",
    operator.neg: "(-{})", operator.pow: "({} ** {})", operator.abs: "abs({})", torch.sym_float: "float({})",
    operator.floordiv: "({} // {})", operator.mod: "({} % {})",
}  # fmt: skip
MOST_SUMMED = 1 << 18  # elements of an output that is summed over rows: each thread adds up its own


@dataclass(frozen=True)
class NumberText:
    """A number that is given at each call, as Python computes it of the call's leaves ``a0``, ``a1``, ..."""

    text: str


@dataclass(frozen=True)
class Stream:
    """A stream of random bits: seed, offset and share to drop, as texts of numbers."""

    seed: str
    offset: str
    p: str


@dataclass(frozen=True)
class Result:
    """A result of the function: an output by its place, viewed in ``shape``; of one that is too large to be summed in
    the kernel the elements, to be summed to ``total``."""

    output: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    total: tuple[int, ...] | None = None


@dataclass
class LoweredGraph:
    """``arguments``: of each input the leaf and the views of it. ``results``: a ``Result``, a view of a leaf, or None
    each."""

    expression: Expression
    arguments: list[ArgumentView] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


def lower_graph(graph: torch.fx.Graph, *, sums: bool = True) -> LoweredGraph:
    """Raises FuseError, and StaticNumberError where a number must stand for its value. Without ``sums`` the kernel adds
    nothing up over rows: such results are written whole and summed behind it."""
    return _Lowering(graph, sums).run()


def _line_of(node: Node) -> str:
    where = node.meta.get("stack_trace")
    return f"\n  {where}" if where else ""


class _Lowering:
    def __init__(self, graph: torch.fx.Graph, sums: bool) -> None:
        self.graph, self.sums = graph, sums
        self.expression = Expression(())
        self.lowered = LoweredGraph(self.expression)
        self.made: dict[Node, Any] = {}
        self.inputs: dict[ArgumentView, int] = {}
        self.viewed: set[Node] = set()

    def run(self) -> LoweredGraph:
        leaf = 0
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.made[node] = self._leaf(node, leaf)
                leaf += 1
            elif node.op == "output":
                self._results(node)
            elif node.op == "call_function":
                try:
                    self.made[node] = self._call(node)
                except FuseError as error:
                    raise FuseError(f"fuse: {error}{'' if _line_of(node) in str(error) else _line_of(node)}") from None
            else:
                raise FuseError(
                    f"fuse: the function holds a tensor ({node.target}): pass it as an argument{_line_of(node)}"
                )
        return self.lowered

    def _leaf(self, node: Node, place: int) -> Any:
        held = node.meta.get("val")
        if isinstance(held, torch.Tensor):
            return ArgumentView(place, (), tuple(held.shape), held.dtype)
        if isinstance(held, (torch.SymInt, torch.SymFloat)):
            return NumberText(f"a{place}")
        return held

    # ------------------------------------------------------------ calls

    def _call(self, node: Node) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            whole, at = node.args[0], int(node.args[1])  # type: ignore[arg-type]
            found = self.made[whole]  # type: ignore[index]
            return found.getitem(at, node.meta["val"]) if isinstance(found, ArgumentView) else found[at]
        if target in NUMBER_OPERATORS:
            return NumberText(NUMBER_OPERATORS[target].format(*(self._number_text(a) for a in node.args)))
        if not isinstance(target, torch._ops.OpOverload):
            raise StaticNumberError(str(target))
        name = target.overloadpacket.__name__
        plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        self._check(node, target, name)
        args = [self.made.get(a, a) if isinstance(a, Node) else a for a in node.args]
        kwargs = {k: self.made.get(v, v) if isinstance(v, Node) else v for k, v in node.kwargs.items()}
        if target.namespace == "kernelworks":
            return self._own(plain, args, kwargs, node)
        first = args[0] if args else None
        if isinstance(first, ArgumentView) and reshaping.is_view(target):
            return first.take_view(target, tuple(args[1:]), kwargs, node.meta["val"])
        if plain in IDENTITIES:
            return first
        if plain in CONSTANTS:
            return self._constant(plain, args, node)
        if plain in ("_to_copy", "convert_element_type"):
            return self._cast(self._value(first), node)
        if reshaping.is_view(target) and isinstance(first, Value):
            return reshaping.reshape(first, tuple(node.meta["val"].shape))
        if plain in REDUCING:
            return REDUCING[plain](self, self._value(first), args, kwargs, node)
        rule = RULES.get(plain)
        if rule is None:
            raise FuseError(f"{target} cannot be fused; accepted are {ACCEPTED_FUNCTIONS}")
        given = self._operands(args)
        more = {
            k: v for k, v in kwargs.items() if k not in ("dtype", "layout", "device", "pin_memory", "memory_format")
        }
        return rule(*given, **{k: self._operands([v])[0] for k, v in more.items()})

    def _check(self, node: Node, target: Any, name: str) -> None:
        if name == "copy_" and isinstance(node.args[1], Node):  # what functionalize ends with
            node.meta["stack_trace"] = node.args[1].meta.get("stack_trace")
            raise FuseError(f"{target} writes into an argument")
        if target._schema.is_mutable and isinstance(self.made.get(node.args[0]), ArgumentView):  # type: ignore[arg-type]
            raise FuseError(f"{target} writes into an argument")
        if target._schema.is_mutable and node.args[0] in self.viewed:
            raise FuseError(f"{target} writes into what has views")
        if reshaping.is_view(target) and isinstance(node.args[0], Node):
            self.viewed |= {node, node.args[0]}
        found = node.meta.get("val")
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype not in DTYPES:
                said = str(tensor.dtype).removeprefix("torch.")
                raise FuseError(f"{target} gives {said}; accepted are float32, bfloat16, float16 and bool")

    def _number_text(self, given: Any) -> str:
        found = self.made[given] if isinstance(given, Node) else given
        return found.text if isinstance(found, NumberText) else repr(found)

    def _operands(self, given: Sequence[Any]) -> list[Any]:
        """Arguments as values: those of tensors, and numbers that are given at each call."""
        lost = any(isinstance(a, Value) and a.lost for a in given)
        return [self._value(a, lost=lost) if self._is_operand(a) else a for a in given]

    def _is_operand(self, given: Any) -> bool:
        if isinstance(given, (ArgumentView, NumberText)):
            return True
        return type(given) in (int, float) and self._is_size(given)

    def _is_size(self, number: float) -> bool:
        return math.isfinite(number) and number == int(number) and abs(number) >= LARGE_LITERAL

    def _value(self, given: Any, *, lost: bool = False) -> Value:
        e = self.expression
        if isinstance(given, Value):
            return given
        if isinstance(given, NumberText):
            return self._number(given.text)
        if isinstance(given, (int, float)):
            return self._number(repr(float(given))) if self._is_size(given) else number_value(e, given)
        if not isinstance(given, ArgumentView):
            raise FuseError(f"{type(given).__name__} is no operand; accepted are tensors and numbers")
        if given.dtype not in DTYPES:
            said = str(given.dtype).removeprefix("torch.")
            raise FuseError(f"an argument of {said}; accepted are float32, bfloat16, float16 and bool")
        shape = given.shape
        lost = lost and bool(shape)
        if lost:
            given = given.with_last()
        k = self.inputs.get(given)
        if k is None:
            k = self.inputs[given] = len(e.inputs)
            e.inputs.append(Input(given.dtype, given.shape))
            self.lowered.arguments.append(given)
        value = Value(e, e.add("input", k), shape, lost)
        return as_truth(value) if given.dtype is torch.bool else value

    def _number(self, text: str) -> Value:
        e = self.expression
        if text not in self.lowered.numbers:
            self.lowered.numbers.append(text)
            e.numbers += 1
        return Value(e, e.add("number", self.lowered.numbers.index(text)), ())

    def _constant(self, plain: str, args: Sequence[Any], node: Node) -> Value:
        filled = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}.get(plain)
        number = args[filled] if filled is not None else float("ones" in plain)
        value = self._value(float(number) if isinstance(number, bool) else number)
        made = replace(value, shape=tuple(node.meta["val"].shape))
        return as_truth(made) if node.meta["val"].dtype is torch.bool else made

    def _cast(self, value: Value, node: Node) -> Value:
        to = node.meta["val"].dtype
        held = node.args[0].meta["val"].dtype if isinstance(node.args[0], Node) else torch.float32
        if to is torch.bool:
            return as_truth(value)
        if held is torch.bool:
            return apply_function("where", value, 1.0, 0.0)
        if to is torch.float32 or to is held:
            return value
        name = str(to).removeprefix("torch.")
        return apply_function(name, value) if value.total is None else value

    # ------------------------------------------------------------ our own operators

    def _own(self, plain: str, args: Sequence[Any], kwargs: Any, node: Node) -> Value:
        if plain != "seeded_dropout":
            raise FuseError(f"{node.target} cannot be fused; accepted are {ACCEPTED_FUNCTIONS}")
        x, p, seed, offset = (*args, *kwargs.values())[:4]
        value = self._value(x)
        stream = Stream(self._number_text(seed), self._number_text(offset), self._number_text(p))
        if stream not in self.lowered.streams:
            self.lowered.streams.append(stream)
            self.expression.randoms += 1
        keep = self.expression.add("kept", self.lowered.streams.index(stream))
        scale = self._number(f"scale_of({stream.p})")
        kept = Value(self.expression, keep, value.shape)
        self.lowered.expression.random_shapes.append(value.shape)
        return apply_function("where", kept, value * scale, 0.0)

    # ------------------------------------------------------------ reductions

    def _dims(self, value: Value, dims: Any) -> list[int]:
        rank = len(value.shape)
        if dims is None or (isinstance(dims, (list, tuple)) and not dims):
            return list(range(rank))
        return sorted({d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])} if rank else ())

    def reduce_value(self, op: str, value: Value, dims: Any, *, keepdim: bool) -> Value:
        """Over the last dimension, or as a result over others."""
        if value.lost or value.total is not None:
            raise FuseError("a reduction of what was reduced, over another dimension")
        at = self._dims(value, dims)
        shape = value.shape
        if not at or all(shape[d] == 1 for d in at):
            left = tuple(n for d, n in enumerate(shape) if keepdim or d not in at)
            return reshaping.reshape(value, left)
        number = apply_function("where", value, 1.0, 0.0) if value.is_true else value
        if at == [len(shape) - 1]:
            place = self.expression.add(op, number.place)
            return Value(self.expression, place, (*shape[:-1], 1) if keepdim else shape[:-1], not keepdim)
        if op != "row_sum":
            raise FuseError("a largest or smallest value over other dimensions than the last")
        total = tuple(1 if d in at else n for d, n in enumerate(shape))
        left = tuple(n for d, n in enumerate(total) if keepdim or d not in at)
        return Value(self.expression, number.place, left, False, total)

    def mean(self, value: Value, dims: Any, *, keepdim: bool) -> Value:
        at = self._dims(value, dims)
        found = self.reduce_value("row_sum", value, dims, keepdim=keepdim)
        if at == [len(value.shape) - 1]:
            length = Value(self.expression, self.expression.add("length"), ())
            return found / length if value.shape[-1] != 1 else found
        count = math.prod(value.shape[d] for d in at)
        return found / self._value(float(count)) if count != 1 else found

    # ------------------------------------------------------------ results

    def _results(self, node: Node) -> None:
        (found,) = node.args
        given = [None if n is None else self.made[n] for n in found]  # type: ignore[union-attr, index]
        values = [v if v is None or isinstance(v, ArgumentView) else self._value(v) for v in given]
        e = self.expression
        shapes = [i.shape for i in e.inputs]
        try:
            e.shape = tuple(torch.broadcast_shapes(*shapes)) if shapes else ()
        except RuntimeError:
            raise FuseError(f"fuse: arguments of shapes {shapes} are not broadcast together") from None
        for k, value in enumerate(values):
            if not isinstance(value, Value):
                self.lowered.results.append(value)
                continue
            dtype = found[k].meta["val"].dtype  # type: ignore[union-attr, index]
            output = self._output(value, dtype)
            total = value.total if output.place == ELEMENTS else None
            e.outputs.append(output)
            self.lowered.results.append(Result(len(e.outputs) - 1, value.shape, dtype, total))
        for shape in e.random_shapes:
            if shape != e.shape:
                raise FuseError(f"fuse: dropout of a tensor of {shape} that is broadcast to {e.shape}")
        trimmed = e.without_unused()
        self.lowered.expression = trimmed

    def _output(self, value: Value, dtype: torch.dtype) -> Output:
        e = self.expression
        place = value.place
        if value.total is None and e.nodes[place].op == str(dtype).removeprefix("torch."):
            place = e.nodes[place].operands[0]  # the store rounds
        if value.total is not None:
            total = value.total
            full = tuple(torch.broadcast_shapes(total, e.shape))
            if full != e.shape:
                raise FuseError(f"fuse: a sum of a value of other sizes than {e.shape}")
            fits = self.sums and math.prod(total) <= min(MOST_SUMMED, 32 * max(e.shape[-1], 1))
            if fits:
                return Output(place, dtype, total, SUMS)
            return Output(place, torch.float32, e.shape, ELEMENTS)
        by_rows = e.by_rows
        rows = (*value.shape, 1) if value.lost else value.shape
        if by_rows and rows == (*e.shape[:-1], 1) and e.row_values()[place]:
            return Output(place, dtype, value.shape, ROWS)
        if [n for n in rows if n != 1] != [n for n in e.shape if n != 1]:
            raise FuseError(f"fuse: a result of shape {value.shape} beside others of {e.shape}")
        return Output(place, dtype, e.shape, ELEMENTS)


Reduction = Callable[[_Lowering, Value, Sequence[Any], Any, Node], Any]


def _argument(node: Node, args: Sequence[Any], kwargs: Any, name: str) -> Any:
    target: Any = node.target
    for k, argument in enumerate(target._schema.arguments):
        if argument.name == name:
            if name in kwargs:
                return kwargs[name]
            return args[k] if k < len(args) else argument.default_value if argument.has_default_value() else None
    return None


def _plain_reduction(op: str) -> Reduction:
    def reduce(lowering: _Lowering, value: Value, args: Sequence[Any], kwargs: Any, node: Node) -> Any:
        dims, keepdim = _argument(node, args, kwargs, "dim"), bool(_argument(node, args, kwargs, "keepdim"))
        return lowering.reduce_value(op, value, dims, keepdim=keepdim)

    return reduce


def _mean(lowering: _Lowering, value: Value, args: Sequence[Any], kwargs: Any, node: Node) -> Value:
    dims, keepdim = _argument(node, args, kwargs, "dim"), bool(_argument(node, args, kwargs, "keepdim"))
    return lowering.mean(value, dims, keepdim=keepdim)


def _var(lowering: _Lowering, value: Value, args: Sequence[Any], kwargs: Any, node: Node) -> Value:
    dims, keepdim = _argument(node, args, kwargs, "dim"), bool(_argument(node, args, kwargs, "keepdim"))
    correction = _argument(node, args, kwargs, "correction")
    if lowering._dims(value, dims) != [len(value.shape) - 1] or value.shape[-1] == 1:
        raise FuseError("a variance over other dimensions than the last")
    away = value - lowering.mean(value, dims, keepdim=True)
    total = lowering.reduce_value("row_sum", away * away, dims, keepdim=keepdim)
    length = Value(lowering.expression, lowering.expression.add("length"), ())
    return total / (length - float(1 if correction is None else correction))


def _var_mean(lowering: _Lowering, value: Value, args: Sequence[Any], kwargs: Any, node: Node) -> tuple[Value, Value]:
    return _var(lowering, value, args, kwargs, node), _mean(lowering, value, args, kwargs, node)


def _std(lowering: _Lowering, value: Value, args: Sequence[Any], kwargs: Any, node: Node) -> Value:
    return apply_function("sqrt", _var(lowering, value, args, kwargs, node))


REDUCING: dict[str, Reduction] = {
    "sum": _plain_reduction("row_sum"), "amax": _plain_reduction("row_max"), "amin": _plain_reduction("row_min"),
    "mean": _mean, "var": _var, "var_mean": _var_mean, "std": _std,
}  # fmt: skip
