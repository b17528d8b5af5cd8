"""Torch's own function, called at once where no more than a look at the arguments' kinds has to come before it.

Until the way in through C++ is built (``native/``), finding a plan in Python takes longer than a small call of torch's.
Torch's function is then what runs, and says what is wrong with arguments itself, but for what it accepts and an op does
not. An op says the call as text, and as text what it has to ask first: ``entry.py`` writes both into the op's ``call``.
What either raises is caught, and the call goes the ordinary way, whose errors are the contract's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract import FLOATS
from kernelworks.plain import NAMES as ASKED

__all__ = ["Passthrough", "floats", "same", "vector"]

NAMES: dict[str, Any] = ASKED | {"FLOATS": frozenset(FLOATS), "autocasting": torch._C._is_any_autocast_enabled}


@dataclass(frozen=True)
class Passthrough:
    """``call`` is torch's function of the op's arguments, an expression; ``when`` are expressions that all hold where
    the contract accepts what that function does. ``names`` are what both read beside the arguments.

    ``operators`` are those that the call dispatches, and none below them; without them autocast is asked for.
    """

    call: str
    when: tuple[str, ...]
    names: Mapping[str, Any]
    operators: tuple[str, ...] = ()

    @property
    def tests(self) -> str:
        """``when`` as one expression, and that autocast changes no dtype."""
        return " and ".join((*self.when, *(() if self._kept() else ("not autocasting()",))))

    def _kept(self) -> bool:
        """Whether autocast has nothing to say about the operators."""
        has: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
        keys = ("AutocastCPU", "AutocastCUDA")
        return bool(self.operators) and not any(has(f"aten::{n}", key) for n in self.operators for key in keys)


def floats(name: str) -> str:
    """``name`` is a tensor of a dtype that ops take."""
    return f"{name}.__class__ in PLAIN and {name}.dtype in FLOATS"


def same(name: str, other: str) -> str:
    """``name`` is a tensor of another's dtype."""
    return f"{name}.__class__ in PLAIN and {name}.dtype is {other}.dtype"


def vector(name: str, other: str) -> str:
    """``name`` is None, or of another's dtype: torch's function looks at the shape."""
    return f"({name} is None or {same(name, other)})"
