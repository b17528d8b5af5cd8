"""Expressions of whole numbers in code that inductor wrote, with the sizes that they are of."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["CAST", "value_of"]

CAST = re.compile(r"static_cast<[\w:]+>|\b(?:c10|std)::")
LONG_SUFFIX = re.compile(r"(?<=\d)L+\b")
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.floordiv,
}  # fmt: skip
CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max, "div_floor_integer": operator.floordiv}


def value_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """The value of an expression of whole numbers as C++ writes it."""
    try:
        return _evaluated(ast.parse(LONG_SUFFIX.sub("", CAST.sub("", text)).strip(), mode="eval").body, sizes)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, TypeError):
        return None


def _evaluated(node: ast.AST, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        found: int = OPERATORS[type(node.op)](_evaluated(node.left, sizes), _evaluated(node.right, sizes))
        return found
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return CALLS[node.func.id](*(_evaluated(each, sizes) for each in node.args))
    raise ValueError(ast.dump(node))
