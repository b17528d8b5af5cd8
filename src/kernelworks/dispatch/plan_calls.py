"""How plans call what is no kernel of ours: in the arguments' own dtype, into what is given, with torch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelworks.dispatch.mutation import copy_into

__all__ = ["call_named", "hand_out", "in_own_dtype", "with_own_dtype"]

_autocasting = torch._C._is_any_autocast_enabled


def in_own_dtype(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """A call whose dtype is its arguments', whatever autocast says."""
    if not _autocasting():
        return function(*args, **named)
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return function(*args, **named)


def with_own_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own function as a plan runs, with as little as can be between a caller and it."""

    def run(*args: Any, out: Any = None) -> Any:
        result = in_own_dtype(function, *args) if _autocasting() else function(*args)
        return result if out is None else copy_into(result, out)

    return run


def call_named(result_type: Callable[[Any], Any], call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a call returns, with the names that torch's function gives it."""
    return result_type(call(*args, **named))


def hand_out(function: Callable[..., Any], *args: Any, out: Any = None) -> Any:
    """A call of a function that writes into nothing it is given."""
    result = function(*args)
    return result if out is None else copy_into(result, out)
