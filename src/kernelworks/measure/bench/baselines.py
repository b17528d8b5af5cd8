"""The baselines: torch as users write it, torch.compile of the same, and the strongest libraries' kernels for the op.

Users write what the op itself calls if no kernel of ours runs. The op package's ``baselines.py``, if it has one, says
what else they write, and which packages have a kernel for the op. A baseline takes the contract's arguments by name.
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
    """The baselines of an op beside torch on this type of device, by name: each prepares the call for one set of
    arguments, or declines (None)."""
    module = baselines_module(op.name)
    found: Mapping[str, Maker] = {} if module is None else module.BASELINES.get(device, {})
    return found


def eager_baseline(op: Op) -> Baseline:
    """What a user of torch writes for this op, taking the contract's arguments by name."""
    stated = eager_of(op.name)
    if stated is not None:
        return stated
    names, written = op.passes["forward"].names, op.as_written
    return lambda **args: written(*(args[name] for name in names))


def has_inductor_kernel(op: Op) -> bool:
    """Whether torch.compile makes a kernel of its own for the op. If the op multiplies matrices, or writes into what it
    is given, inductor calls the kernel that eager calls."""
    return op.contract.arithmetic != "products" and not op.contract.mutates


def inductor_baseline(op: Op) -> Baseline | None:
    """torch.compile of the eager baseline, for static shapes; None if it calls eager's kernels.

    The first call compiles (seconds). It raises whatever inductor raises.
    """
    if not has_inductor_kernel(op):
        return None
    torch._dynamo.reset()
    return torch.compile(eager_baseline(op), dynamic=False)
