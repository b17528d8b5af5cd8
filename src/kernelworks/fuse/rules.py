"""Torch's operators in terms of an expression's functions, one rule each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelworks.fuse.trace import FuseError
from kernelworks.fuse.values import FUNCTION_SCOPE, Value, apply_function
from kernelworks.ops.activation.table.contract import TABLE

__all__ = ["ACCEPTED_FUNCTIONS", "RULES", "OPEN_NUMBER", "StaticNumberError"]

OPEN_NUMBER = "a number whose value decides what is computed"


class StaticNumberError(Exception):
    """A number has to stand for its value: what is computed hangs on it."""


def _f(op: str) -> Callable[..., Value]:
    return lambda *given: apply_function(op, *given)


def _scaled(a: Any, b: Any, alpha: Any) -> Any:
    return b if alpha == 1 and not isinstance(alpha, Value) else b * alpha if isinstance(b, Value) else alpha * b


def _add(a: Any, b: Any, *, alpha: Any = 1) -> Value:
    return apply_function("add", a, _scaled(a, b, alpha))


def _sub(a: Any, b: Any, *, alpha: Any = 1) -> Value:
    return apply_function("sub", a, _scaled(a, b, alpha))


def _rsub(a: Any, b: Any, alpha: Any = 1) -> Value:
    return apply_function("sub", b, _scaled(b, a, alpha))


def _div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    made = apply_function("div", a, b)
    if rounding_mode is not None:
        made = apply_function("floor", made) if rounding_mode == "floor" else _trunc(made)
    return made


def _trunc(x: Value) -> Value:
    return apply_function("where", x < 0.0, apply_function("ceil", x), apply_function("floor", x))


def _clamp(x: Value, low: Any = None, high: Any = None) -> Value:
    x = x if low is None else apply_function("max", x, low)
    return x if high is None else apply_function("min", x, high)


def _power(x: Any, p: Any) -> Value:
    if isinstance(p, Value):
        raise StaticNumberError(OPEN_NUMBER)
    if not isinstance(x, Value):
        raise FuseError("a power whose exponent is a tensor")
    if p == 0.5:
        return apply_function("sqrt", x)
    if p == -0.5:
        return 1.0 / apply_function("sqrt", x)
    if p != int(p) or not 0 < abs(p) <= 16:
        raise FuseError(f"a power of {p}: accepted are whole ones up to 16, 0.5 and -0.5")
    made, base, left = None, x, int(abs(p))
    while left:
        if left & 1:
            made = base if made is None else made * base
        base, left = base * base if left > 1 else base, left >> 1
    assert made is not None
    return 1.0 / made if p < 0 else made


def _gelu(x: Value, *, approximate: str = "none") -> Value:
    if approximate == "none":
        return x * apply_function("normal", x)
    return x * apply_function("sigmoid", _twice_u(x))


ROOT = 2.0 * math.sqrt(2.0 / math.pi)


def _twice_u(x: Value) -> Value:
    return x * (0.044715 * ROOT * (x * x) + ROOT)


def _gelu_backward(grad: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "none":
        density = apply_function("exp", -0.5 * (x * x)) * (1.0 / math.sqrt(2.0 * math.pi))
        return grad * (apply_function("normal", x) + x * density)
    c = _clamp(x, -20.0, 20.0)  # 0 or 1 long before, and no power of it overflows
    inner, slope = _twice_u(c), 3.0 * 0.044715 * ROOT * (c * c) + ROOT
    up, down = apply_function("sigmoid", inner), apply_function("sigmoid", -inner)
    return grad * (up + x * (up * down * slope))


def _elu(x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    below = apply_function("min", x, 0.0) if input_scale == 1 else apply_function("min", x * input_scale, 0.0)
    return apply_function("where", x > 0.0, x * scale, (apply_function("expm1", below) * alpha) * scale)


def _leaky_backward(grad: Value, x: Value, slope: Any, is_result: bool) -> Value:
    return apply_function("where", x > 0.0, grad, grad * slope)


def _log_sigmoid(x: Value) -> tuple[Value, Value]:
    made = _entry("logsigmoid", "value")(x)
    return made, made


def _entry(name: str, part: str) -> Callable[..., Value]:
    """A function of the table of activations: of x and its numbers, and a gradient's first."""
    entry = TABLE.entries[name]

    def rule(*given: Any) -> Value:
        names = [*(["grad"] if part == "gradient" else []), "x", *entry.numbers]
        presets = [real.preset for real in entry.numbers.values()]
        scope = dict(FUNCTION_SCOPE)
        given = (*given, *presets[len(given) - (len(names) - len(presets)) :])
        scope |= dict(zip(names, given, strict=True))
        for let, text in entry.let.items():
            scope[let] = eval(text, scope)
        made = eval(getattr(entry, part), scope)
        assert isinstance(made, Value)
        return made

    return rule


def _sign(x: Value) -> Value:
    return apply_function("where", x > 0.0, 1.0 + 0.0 * x, apply_function("where", x < 0.0, -1.0 + 0.0 * x, 0.0 * x))


def _where(condition: Any, a: Any, b: Any) -> Value:
    return apply_function("where", condition, a, b)


def _masked_fill(x: Value, mask: Value, number: Any) -> Value:
    return apply_function("where", mask, number, x)


def _threshold_backward(grad: Value, x: Value, threshold: Any) -> Value:
    return apply_function("where", x <= threshold, _zero(grad), grad)


def _zero(like: Value) -> Value:
    return Value(like.expression, like.expression.add("constant", 0.0), like.shape, like.lost)


def _isnan(x: Value) -> Value:
    return apply_function("ne", x, x)


def _isinf(x: Value) -> Value:
    return apply_function("eq", apply_function("abs", x), math.inf)


OF_TABLE = {
    "silu": "silu", "mish": "mish", "hardswish": "hardswish", "hardsigmoid": "hardsigmoid", "leaky_relu": "leaky_relu",
    "softplus": "softplus", "hardtanh": "hardtanh", "softshrink": "softshrink", "hardshrink": "hardshrink",
    "threshold": "threshold",
}  # fmt: skip
GRADIENTS_OF_TABLE = {
    "silu_backward": "silu", "mish_backward": "mish", "hardsigmoid_backward": "hardsigmoid",
    "hardswish_backward": "hardswish", "hardtanh_backward": "hardtanh", "softplus_backward": "softplus",
    "softshrink_backward": "softshrink", "hardshrink_backward": "hardshrink",
}  # fmt: skip

RULES: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "rsub": _rsub, "mul": _f("mul"), "div": _div, "true_divide": _div, "neg": _f("neg"),
    "abs": _f("abs"), "maximum": _f("max"), "minimum": _f("min"), "clamp": _clamp,
    "clamp_min": lambda x, low: _clamp(x, low), "clamp_max": lambda x, high: _clamp(x, None, high),
    "relu": lambda x: apply_function("max", x, 0.0), "square": lambda x: x * x, "pow": _power,
    "reciprocal": lambda x: 1.0 / x, "sqrt": _f("sqrt"), "rsqrt": lambda x: 1.0 / apply_function("sqrt", x),
    "exp": _f("exp_any"), "expm1": _f("expm1_any"), "log": _f("log"), "log1p": _f("log1p_any"),
    "exp2": lambda x: apply_function("exp_any", x * math.log(2.0)),
    "log2": lambda x: apply_function("log", x) * (1.0 / math.log(2.0)),
    "log10": lambda x: apply_function("log", x) * (1.0 / math.log(10.0)),
    "erf": _f("erf"), "sigmoid": _f("sigmoid"), "tanh": _f("tanh"), "gelu": _gelu, "gelu_backward": _gelu_backward,
    "elu": _elu, "log_sigmoid_forward": _log_sigmoid, "leaky_relu_backward": _leaky_backward,
    "log_sigmoid_backward": lambda grad, x, buffer: _entry("logsigmoid", "gradient")(grad, x),
    "threshold_backward": _threshold_backward,
    "floor": _f("floor"), "ceil": _f("ceil"), "round": _f("round"), "trunc": _trunc,
    "sign": _sign, "sgn": _sign, "where": _where, "masked_fill": _masked_fill,
    "lt": _f("lt"), "le": _f("le"), "gt": _f("gt"), "ge": _f("ge"), "eq": _f("eq"), "ne": _f("ne"),
    "logical_and": _f("and"), "logical_or": _f("or"), "logical_xor": _f("xor"), "logical_not": _f("not"),
    "bitwise_and": _f("and"), "bitwise_or": _f("or"), "bitwise_xor": _f("xor"), "bitwise_not": _f("not"),
    "isnan": _isnan, "isinf": _isinf, "isfinite": lambda x: ~(_isnan(x) | _isinf(x)),
    **{name: _entry(entry, "value") for name, entry in OF_TABLE.items()},
    **{name: _entry(entry, "gradient") for name, entry in GRADIENTS_OF_TABLE.items()},
}  # fmt: skip

ACCEPTED_FUNCTIONS = (
    "arithmetic, comparisons, where and masks, abs, min, max and clamp, powers, exp, log, sqrt and erf, the "
    "activations, casts among float32, bfloat16, float16 and bool, kw.dropout, and sum, mean, amax, amin, softmax and "
    "norms over the last dimension"
)
