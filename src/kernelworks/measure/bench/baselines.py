"""What we race: torch as users write it, torch.compile of the same, and the strongest peers of the op.

What users write is what the op itself calls where no row of ours runs; the room's ``peers.py``, where it has one, says
what they do otherwise, and which packages have a kernel of their own for it. A baseline takes the contract's arguments
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelworks.dispatch.op import Op
from kernelworks.ops.peers import Maker, eager_of, room_of

__all__ = ["compiled", "eager", "generated", "peers"]

Baseline = Callable[..., Any]


def peers(op: Op, device: str) -> Mapping[str, Maker]:
    """What an op is raced against beside torch on this type of device, by the arm's name: each prepares the call for
    one set of arguments, or declines (None)."""
    room = room_of(op.name)
    found: Mapping[str, Maker] = {} if room is None else room.PEERS.get(device, {})
    return found


def eager(op: Op) -> Baseline:
    """What a user of torch writes for this op, taking the contract's arguments by name."""
    told = eager_of(op.name)
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
