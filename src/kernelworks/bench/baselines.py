"""What we race: torch as users write it, torch.compile of the same, and the strongest peers of the op.

What users write is what the op itself calls where no row of ours runs; the room's ``peers.py``, where it has one, says
what they do otherwise, and which packages have a kernel of their own for it. A baseline takes the contract's arguments
by name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from kernelworks.op import Op
from kernelworks.ops.peers import Maker
from kernelworks.rooms import ROOMS

__all__ = ["compiled", "eager", "generated", "peers"]

Baseline = Callable[..., Any]


def _room(op: Op) -> ModuleType | None:
    """The room's ``peers.py``; ops that joined from outside have none."""
    name = f"{ROOMS[op.name]}.peers" if op.name in ROOMS else ""
    return importlib.import_module(name) if name and importlib.util.find_spec(name) is not None else None


def peers(op: Op, device: str) -> Mapping[str, Maker]:
    """What an op is raced against beside torch on this type of device, by the arm's name: each prepares the call for
    one set of arguments, or declines (None)."""
    room = _room(op)
    found: Mapping[str, Maker] = {} if room is None else room.PEERS.get(device, {})
    return found


def eager(op: Op) -> Baseline:
    """What a user of torch writes for this op, taking the contract's arguments by name."""
    told: Baseline | None = getattr(_room(op), "eager", None)
    if told is not None:
        return told
    names, written = op.passes["forward"].names, op.as_written
    return lambda **args: written(*(args[name] for name in names))


def generated(op: Op) -> bool:
    """Whether torch.compile makes a kernel of its own for the op. Where it multiplies matrices, or writes into what it
    is given, inductor calls the very kernel that eager calls."""
    return op.contract.arithmetic != "products" and not op.contract.mutates


def compiled(op: Op) -> Baseline | None:
    """torch.compile of the eager baseline, for static shapes; None where it calls eager's kernels.

    The first call compiles (seconds). It raises whatever inductor raises.
    """
    if not generated(op):
        return None
    torch._dynamo.reset()
    return torch.compile(eager(op), dynamic=False)
