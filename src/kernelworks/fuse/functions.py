"""The functions of an expression: how each is written in C++ and in Triton, and how far its kernel may be off.

Names that the table of activations has are its: ``exp`` and ``expm1`` of nothing above 0, ``log1p`` of 0 to 1. The
others take any argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelworks.templates import running_error
from kernelworks.templates.activation import OPERATIONS
from kernelworks.templates.activation_table import CPP
from kernelworks.templates.running_error import FUNCTIONS

__all__ = ["ELEMENT_FUNCTIONS", "ElementFunction"]


@dataclass(frozen=True)
class ElementFunction:
    """``cpp`` and ``triton`` are formats of the operands' texts. ``operations`` are of one call on a vector.
    ``analysis`` is the function on values with their errors."""

    cpp: str
    operations: int
    analysis: Callable[..., Any]
    triton: str


def _symbol(symbol: str, analysis: Callable[..., Any]) -> ElementFunction:
    return ElementFunction(f"{{0}} {symbol} {{1}}", 1, analysis, f"{{0}} {symbol} {{1}}")


def _called(name: str, operations: int, analysis: Callable[..., Any], triton: str = "") -> ElementFunction:
    return ElementFunction(f"{name}({{0}})", operations, analysis, f"{triton or name}({{0}})")


# Of the functions of the table, by their names in tile/. Those take any argument where the table's exp does not.
TRITON = {
    "exp": "exponential_any", "expm1": "exp_less_one", "log1p": "log_one_more", "sigmoid": "logistic", "tanh": "tanh",
}  # fmt: skip

ELEMENT_FUNCTIONS: dict[str, ElementFunction] = {
    "add": _symbol("+", lambda a, b: a + b), "sub": _symbol("-", lambda a, b: a - b),
    "mul": _symbol("*", lambda a, b: a * b),
    "div": ElementFunction("{0} / {1}", 4, lambda a, b: a / b, "tl.div_rn({0}, {1})"),
    "neg": ElementFunction("-{0}", 1, lambda a: -a, "-{0}"),
    "abs": _called("abs", 1, FUNCTIONS["abs"], "tl.abs"),
    "max": ElementFunction("larger({0}, {1})", 3, running_error.larger, "larger({0}, {1})"),
    "min": ElementFunction("smaller({0}, {1})", 3, running_error.smaller, "smaller({0}, {1})"),
    "lt": _symbol("<", lambda a, b: a < b), "le": _symbol("<=", lambda a, b: a <= b),
    "gt": _symbol(">", lambda a, b: a > b), "ge": _symbol(">=", lambda a, b: a >= b),
    "eq": _symbol("==", running_error.equal), "ne": _symbol("!=", running_error.unequal),
    "and": _symbol("&", lambda a, b: a & b), "or": _symbol("|", lambda a, b: a | b),
    "xor": _symbol("^", lambda a, b: a ^ b), "not": ElementFunction("!({0})", 1, lambda a: ~a, "({0} == 0)"),
    "true": ElementFunction("{0} != 0.0f", 1, running_error.is_true, "({0} != 0.0)"),
    "where": ElementFunction("where({0}, {1}, {2})", 1, FUNCTIONS["where"], "tl.where({0}, {1}, {2})"),
    "exp_any": _called("exponential_any", 16, running_error.exponential),
    "expm1_any": _called("exponential_less_one_any", 36, running_error.exponential_less_one),
    "log": _called("logarithm", 24, running_error.logarithm),
    "log1p_any": _called("logarithm_one_more_any", 34, running_error.logarithm_one_more),
    "sqrt": _called("square_root", 8, running_error.square_root, "tl.sqrt_rn"),
    "erf": _called("error_function", 18, running_error.error_function),
    "normal": _called("normal_distribution", 30, running_error.normal_distribution),
    "floor": _called("greatest_whole", 3, running_error.floor, "tl.floor"),
    "ceil": _called("least_whole", 3, running_error.ceil, "tl.ceil"),
    "round": _called("nearest_whole", 1, running_error.nearest),
    "bfloat16": _called("rounded_to_bfloat16", 6, running_error.to_bfloat16),
    "float16": _called("rounded_to_float16", 2, running_error.to_float16),
    **{name: _called(cpp, OPERATIONS[name], FUNCTIONS[name], TRITON[name]) for name, cpp in CPP.items()},
}  # fmt: skip
