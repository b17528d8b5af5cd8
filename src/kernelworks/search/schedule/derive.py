"""A nest from a PyTorch function: its graph of aten operators, walked once.

What is pointwise becomes an expression, which is computed where it is read if one operator alone reads it; reductions,
products, convolutions and pools become stages; views become strides. What has no rule is declined by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.contract.bounds.call import words
from kernelworks.search.schedule.nest import Apply, Expr, Index, Kernel, Number, cost
from kernelworks.search.schedule.reductions import RULES
from kernelworks.search.schedule.values import Builder, Lazy, NotDerivable, Place, Value

__all__ = ["NotDerivable", "derive_nest"]

DECOMPOSED_OPS = """
    _softmax _log_softmax native_layer_norm native_group_norm mse_loss nll_loss_forward smooth_l1_loss huber_loss
    hardswish hardsigmoid elu softplus mish log_sigmoid_forward mv dot linalg_vector_norm norm std std_mean
    native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit_functional celu selu
    softshrink hardshrink threshold addcmul addcdiv lerp rsub binary_cross_entropy binary_cross_entropy_with_logits
    soft_margin_loss l1_loss addmv tril triu _safe_softmax _scaled_dot_product_flash_attention_for_cpu
"""


def derive_nest(call: Callable[..., Any], inputs: Sequence[Any]) -> Kernel:
    """The nest of ``call(*inputs)``, a module or a function, for inputs of these shapes. Raises NotDerivable."""
    state = dict(call.state_dict(keep_vars=True)) if isinstance(call, nn.Module) else {}
    trained = {n for n, _ in call.named_parameters()} if isinstance(call, nn.Module) else set()
    tensors = [v for v in inputs if isinstance(v, Tensor)]
    for value in (*tensors, *state.values()):
        if value.dtype not in (torch.float32, torch.int64, torch.bool):
            raise NotDerivable(f"a tensor of {value.dtype}; float32, int64 as places and booleans are taken")
    graph = _traced(call, state, inputs)
    builder = Builder()
    given: list[Value] = []
    for name, value in state.items():
        place = builder.buffer(f"w_{_plain(name)}", value.shape, "weight", dtype=_dtype(value), source=name)
        given.append(place)
    for number, item in enumerate(inputs):
        if isinstance(item, Tensor):
            given.append(builder.buffer(f"x{number}", item.shape, "input", dtype=_dtype(item), source=str(number)))
    answers = _Walk(builder, graph, given).run()
    weights = {n: (tuple(v.shape), _dtype(v), n in trained) for n, v in state.items()}
    return builder.kernel(answers, weights)


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _traced(call: Callable[..., Any], state: Mapping[str, Tensor], inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """Its graph on tensors without contents, without mutations."""
    from torch._decomp import get_decompositions
    from torch.func import functional_call, functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(state)
    packets: list[Any] = [getattr(torch.ops.aten, n) for n in DECOMPOSED_OPS.split() if hasattr(torch.ops.aten, n)]

    def run(*flat: Tensor) -> Any:
        tensors = iter(flat[len(names) :])
        args = [next(tensors) if isinstance(v, Tensor) else v for v in inputs]
        if isinstance(call, nn.Module):
            return functional_call(call, dict(zip(names, flat, strict=False)), tuple(args))
        return call(*args)

    flat = [v.detach() for v in (*state.values(), *(v for v in inputs if isinstance(v, Tensor)))]
    try:
        with torch.no_grad():
            trace: Any = make_fx  # whose annotation of the table is narrower than what it takes
            made = trace(
                functionalize(run, remove="mutations"), get_decompositions(packets), tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )  # fmt: skip
            return made(*flat)  # type: ignore[no-any-return]
    except Exception as error:
        raise NotDerivable(f"it cannot be traced: {type(error).__name__}: {str(error).splitlines()[:1]}") from error


# ---------------------------------------------------------------- pointwise operators


ONE, SLOPE = Number(1.0), Number(0.01)


def _f(name: str, *operands: Expr) -> Expr:
    return Apply(name, operands)


def _power(x: Expr, p: Expr) -> Expr:
    if not isinstance(p, Number):
        return _f("pow", x, p)
    whole = {2.0: _f("square", x), 3.0: _f("mul", _f("square", x), x), 1.0: x, 0.5: _f("sqrt", x), -0.5: _f("rsqrt", x)}
    whole |= {-1.0: _f("reciprocal", x), 4.0: _f("square", _f("square", x))}
    return whole.get(p.value, _f("pow", x, p))


def _gelu(x: Expr, how: str = "none") -> Expr:
    half = _f("mul", x, Number(0.5))
    if how == "none":
        return _f("mul", half, _f("add", Number(1.0), _f("erf", _f("mul", x, Number(math.sqrt(0.5))))))
    cube = _f("mul", _f("square", x), x)
    inside = _f("mul", Number(math.sqrt(2 / math.pi)), _f("add", x, _f("mul", Number(0.044715), cube)))
    return _f("mul", half, _f("add", Number(1.0), _f("tanh", inside)))


def _clamp(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    x = x if low is None else _f("max", x, low)
    return x if high is None else _f("min", x, high)


def _leaky(x: Expr, slope: Expr = SLOPE) -> Expr:
    return _f("select", _f("less", Number(0.0), x), x, _f("mul", x, slope))


def _scaled(name: str) -> Callable[..., Expr]:
    """A sum or difference whose second operand may have a factor."""

    def made(a: Expr, b: Expr, alpha: Expr = ONE) -> Expr:
        return _f(name, a, b if alpha == ONE else _f("mul", b, alpha))

    return made


def _same(name: str) -> Callable[..., Expr]:
    return lambda *operands: _f(name, *operands)


POINTWISE: dict[str, Callable[..., Expr]] = {
    **{n: _same(n) for n in ("mul", "div", "neg", "exp", "sqrt", "rsqrt", "reciprocal", "abs", "relu", "square")},
    **{n: _same(n) for n in ("sigmoid", "tanh", "erf", "log", "log1p", "expm1", "sin", "cos", "floor")},
    "add": _scaled("add"), "sub": _scaled("sub"), "pow": _power, "gelu": _gelu,
    "maximum": _same("max"), "minimum": _same("min"), "clamp": _clamp, "hardtanh": _clamp,
    "clamp_min": _clamp, "clamp_max": lambda x, high: _clamp(x, None, high),
    "silu": lambda x: _f("mul", x, _f("sigmoid", x)), "leaky_relu": _leaky,
    "where": _same("select"),
    "masked_fill": lambda x, mask, value: _f("select", mask, value, x),
    "lt": _same("less"), "le": _same("less_equal"), "eq": _same("equal"), "ne": _same("not_equal"),
    "gt": lambda a, b: _f("less", b, a), "ge": lambda a, b: _f("less_equal", b, a),
    "logical_and": _same("and"), "logical_or": _same("or"), "logical_not": _same("not"),
    "bitwise_and": _same("and"), "bitwise_or": _same("or"), "bitwise_not": _same("not"),
}  # fmt: skip
KEYWORDS = {"alpha": "alpha", "approximate": "how", "min": "low", "max": "high"}
VIEWS = words(
    "view _unsafe_view permute transpose t unsqueeze squeeze expand slice select split split_with_sizes unbind reshape "
    "narrow diagonal as_strided unsafe_split unsafe_chunk"
)
TWICE, LIGHT = {"silu", "gelu", "leaky_relu", "pow"}, 4
NOTHING = {"alias", "detach", "clone", "contiguous", "lift_fresh_copy", "_to_copy", "to", "convert_element_type"}
FILL_OPS = {"full": 1, "full_like": 1, "scalar_tensor": 0}  # the place of its value
FILL_VALUES = {"zeros": 0.0, "zeros_like": 0.0, "ones": 1.0, "ones_like": 1.0, "new_zeros": 0.0, "empty": math.nan}


class _Walk:
    def __init__(self, builder: Builder, graph: torch.fx.GraphModule, given: Sequence[Value]) -> None:
        self.builder, self.graph, self.given = builder, graph, given
        self.env: dict[torch.fx.Node, Any] = {}

    def run(self) -> list[Place]:
        given = iter(self.given)
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = next(given)
            elif node.op == "get_attr":
                self.env[node] = self._constant(getattr(self.graph, node.target))
            elif node.op == "call_function":
                self.env[node] = self._called(node)
            else:
                return self._answers(node.args[0])
        raise NotDerivable("its graph has no answer")

    def _constant(self, value: Tensor) -> Value:
        if value.numel() != 1:
            raise NotDerivable("a tensor of constants that it makes itself")
        return Lazy(tuple(value.shape), (None,) * value.dim(), Number(float(value.item())))

    def _answers(self, said: Any) -> list[Place]:
        answers = said if isinstance(said, (list, tuple)) else [said]
        found = list[Place]()
        for node in answers:
            if not isinstance(node, torch.fx.Node) or node.meta["val"].dtype != torch.float32:
                raise NotDerivable("an answer that is no tensor of float32")
            place = self.builder.materialize(self.env[node], f"t_{node.name}")
            buffer = self.builder.buffers[place.buffer]
            if buffer.kind != "between" or buffer.zeroed or any(place.buffer == p.buffer for p in found):
                place = self._copied(place, f"t_{node.name}")
            found.append(place)
        return found

    def _copied(self, place: Place, name: str) -> Place:
        axes = self.builder.suggest_axes(place)
        return self.builder.stage(name, place.shape, [d for d in axes if d], self.builder.read(place, axes))

    def _called(self, node: torch.fx.Node) -> Any:
        target: Any = node.target
        if target.__name__ == "getitem":
            source: Any = node.args[0]
            return self.env[source][node.args[1]]
        name = target.overloadpacket.__name__ if hasattr(target, "overloadpacket") else str(target)
        args: Any = torch.fx.node.map_arg(node.args, lambda n: self.env[n])
        kwargs: Any = torch.fx.node.map_arg(dict(node.kwargs), lambda n: self.env[n])
        if name in POINTWISE:
            return self._materialize_shared(node, self._pointwise(node, name, args, kwargs))
        if name in NOTHING:
            return self._converted(node, args[0])
        if name in VIEWS:
            return self._viewed(node, target, args, kwargs)
        if name in FILL_OPS or name in FILL_VALUES:
            value = FILL_VALUES[name] if name in FILL_VALUES else args[FILL_OPS[name]]
            if isinstance(value, (int, float)):
                shape = tuple(node.meta["val"].shape)
                decides = node.meta["val"].dtype is torch.bool
                constant: Expr = Number(float(value))
                constant = Apply("not_equal", (constant, Number(0.0))) if decides else constant
                return Lazy(shape, (None,) * len(shape), constant, decides)
        if name == "arange" or name == "iota":
            return self._counted(node, args, kwargs)
        rule = RULES.get(name)
        if rule is None:
            raise NotDerivable(f"aten::{name} has no rule")
        schema = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
        bound = schema | dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
        found = rule(self.builder, f"t_{node.name}", bound, node)
        return self._materialize_shared(node, found) if isinstance(found, Lazy) else found

    def _materialize_shared(self, node: torch.fx.Node, value: Lazy) -> Value:
        """What several operators read is computed once; booleans and numbers where they are read."""
        light = not isinstance(value.value, Apply)
        if len(node.users) <= 1 or value.decides or light:
            return value
        return self.builder.materialize(value, f"t_{node.name}")

    def _pointwise(self, node: torch.fx.Node, name: str, args: Any, kwargs: Any) -> Lazy:
        result = node.meta["val"]
        if kwargs.get("rounding_mode") is not None:
            raise NotDerivable(f"aten::{name} that rounds")
        if result.dtype not in (torch.float32, torch.bool, torch.int64):
            raise NotDerivable(f"aten::{name} of {result.dtype}")
        args = [self._once(node, name, a) for a in args]
        operands = [a for a in args if isinstance(a, (Place, Lazy))]
        axes, exprs = self.builder.align_operands(result.shape, operands, f"t_{node.name}_from")
        found = iter(exprs)

        def resolve_operand(value: Any) -> Any:
            if isinstance(value, (Place, Lazy)):
                return next(found)
            return Number(float(value)) if isinstance(value, (int, float)) else value

        made = POINTWISE[name]
        more = {KEYWORDS[k]: resolve_operand(v) for k, v in kwargs.items() if k in KEYWORDS and v is not None}
        decides = result.dtype is torch.bool
        value = made(*(resolve_operand(a) for a in args), **more)
        return Lazy(tuple(result.shape), tuple(axes), value, decides)

    def _once(self, node: torch.fx.Node, name: str, operand: Any) -> Any:
        """What a formula has in several places is computed before, where it is work."""
        if name in TWICE and isinstance(operand, Lazy) and not operand.decides and cost(operand.value) > LIGHT:
            return self.builder.materialize(operand, f"t_{node.name}_of")
        return operand

    def _converted(self, node: torch.fx.Node, value: Any) -> Value:
        result = node.meta["val"]
        if isinstance(value, Lazy) and value.decides and result.dtype is not torch.bool:
            chosen = Apply("select", (value.value, Number(1.0), Number(0.0)))
            return self._materialize_shared(node, Lazy(value.shape, value.axes, chosen))
        if result.dtype not in (torch.float32, torch.int64, torch.bool):
            raise NotDerivable(f"a conversion to {result.dtype}")
        return value  # type: ignore[no-any-return]

    def _viewed(self, node: torch.fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
        first = args[0]
        if isinstance(first, Lazy) and all(d is None for d in first.axes):  # the same everywhere
            shapes = node.meta["val"]
            if isinstance(shapes, Tensor):
                return Lazy(tuple(shapes.shape), (None,) * shapes.dim(), first.value, first.decides)
        place = self.builder.materialize(first, f"t_{node.name}_of")
        try:
            found = target(place.meta, *args[1:], **kwargs)
        except RuntimeError:  # no view of what lies like this
            place = self._copied(place, f"t_{node.name}_of")
            found = target(place.meta, *args[1:], **kwargs)
        if isinstance(found, (list, tuple)):
            return [Place(place.buffer, f) for f in found]
        return Place(place.buffer, found)

    def _counted(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Lazy:
        (size,) = node.meta["val"].shape
        numbers = [a for a in args if isinstance(a, int)]
        start = kwargs.get("start", numbers[0] if len(numbers) > 1 else 0)
        step = kwargs.get("step", numbers[2] if len(numbers) > 2 else 1)
        dim = self.builder.new_dim(size)
        return Lazy((size,), (dim if size > 1 else None,), Index(((dim, step),) if size > 1 else (), start))
