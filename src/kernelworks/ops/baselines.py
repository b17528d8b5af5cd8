"""What the op packages' ``baselines.py`` share. Such a file says what an op is benchmarked against beside torch;
``bench`` reads it.

- ``BASELINES``: by type of device, then by the baseline's name, what prepares a call for one set of the contract's
  arguments. Baselines that need their own layout of a weight convert it once, outside the timing, as their own users
  would; each declines (None) what it does not do, or where its package is missing.
- ``eager``, where it is there: what users of torch write for the op, where they keep between calls what the op's
  ``native`` makes anew.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from kernelworks.dispatch.registry import OP_PACKAGES

__all__ = ["Args", "Maker", "baselines_module", "compiled_whole", "eager_of", "liger"]

Args = Mapping[str, Any]
Maker = Callable[[Any], Callable[[], Any] | None]


def baselines_module(op: str) -> ModuleType | None:
    """The op package's ``baselines.py``; ops that joined from outside have none."""
    name = f"{OP_PACKAGES[op]}.baselines" if op in OP_PACKAGES else ""
    return importlib.import_module(name) if name and importlib.util.find_spec(name) is not None else None


def eager_of(op: str) -> Callable[..., Any] | None:
    """What the op package says that users of torch write, if it does; it takes the contract's arguments by name."""
    told: Callable[..., Any] | None = getattr(baselines_module(op), "eager", None)
    return told


RECOMPILES = 256  # torch's own limit, of builds of one function, is 8: fewer than a race has shapes


def compiled_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled for each shape, in one graph or not at all.

    Past the limit of recompiles it would run as it is written, with no more than a warning; FlexAttention unfused is a
    hundred times slower than what it stands for.
    """
    config: Any = importlib.import_module("torch._dynamo.config")
    config.recompile_limit = max(config.recompile_limit, RECOMPILES)
    return torch.compile(function, dynamic=False, fullgraph=True)


def liger(
    module: str, function: str, given: Callable[[Args], tuple[Any, ...] | None]
) -> Mapping[str, Mapping[str, Maker]]:
    """The ``BASELINES`` of an op that Liger (liger-kernel) has an autograd function for, which takes what ``given``
    makes of the contract's arguments; None where it declines them. None either where Liger is not installed or has no
    such function."""

    def make(args: Args) -> Callable[[], Any] | None:
        values = given(args)
        try:
            baseline = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), function, None)
        except Exception:  # whatever an incompatible release raises when it is imported
            return None
        return None if baseline is None or values is None else functools.partial(baseline.apply, *values)

    return {"cuda": {"liger": make}}
