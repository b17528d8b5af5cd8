"""Numbers that a kernel takes, made of an op's own: each by an expression, in float64."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any

__all__ = ["derived_numbers"]


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<number>", "eval")


def derived_numbers(expressions: Mapping[str, str], numbers: Mapping[str, Any]) -> dict[str, float]:
    """The value of each expression of ``numbers``, by its name."""
    scope = {"__builtins__": {}, **numbers}
    return {name: float(eval(_compiled(text), scope)) for name, text in expressions.items()}
