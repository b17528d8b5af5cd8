"""What we race: torch as users write it, torch.compile of the same, and the strongest peers of the op.

What users write is what the op itself calls where no row of ours runs; the room's ``library_baselines.py``, where it has one, says
what they do otherwise, and which packages have a kernel of their own for it. A baseline takes the contract's arguments
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelworks.dispatch.op import Op
from kernelworks.ops.baselines import Maker, baselines_module, eager_of

__all__ = ["eager_baseline", "has_inductor_kernel", "inductor_baseline", "library_baselines"]

Baseline = Callable[..., Any]


def library_baselines(op: Op, device: str) -> Mapping[str, Maker]:
    """What an op is raced against beside torch on this type of device, by the arm's name: each prepares the call for
    one set of arguments, or declines (None)."""
    module = baselines_module(op.name)
    found: Mapping[str, Maker] = {} if module is None else module.BASELINES.get(device, {})
    return found


def eager_baseline(op: Op) -> Baseline:
    """What a user of torch writes for this op, taking the contract's arguments by name."""
    told = eager_of(op.name)
    if told is not None:
        return told
    names, written = op.passes["forward"].names, op.as_written
    return lambda **args: written(*(args[name] for name in names))


def has_inductor_kernel(op: Op) -> bool:
    """Whether torch.compile makes a kernel of its own for the op. Where it multiplies matrices, or writes into what it
    is given, inductor calls the very kernel that eager calls."""
    return op.contract.arithmetic != "products" and not op.contract.mutates


def inductor_baseline(op: Op) -> Baseline | None:
    """torch.compile of the eager baseline, for static shapes; None where it calls eager's kernels.

    The first call compiles (seconds). It raises whatever inductor raises.
    """
    if not has_inductor_kernel(op):
        return None
    torch._dynamo.reset()
    return torch.compile(eager_baseline(op), dynamic=False)
