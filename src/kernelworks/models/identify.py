"""Normalisations that a user wrote out in arithmetic, recognised by identity testing.

A forward without a branch, a loop or a call of a function of the user's own computes one formula in its inputs. Where
that formula agrees with root mean square normalisation in float64 on random inputs of several magnitudes and random
weights, it is that formula: two different ones of this kind do not meet at random points.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.models import calls
from kernelworks.ops.norm.rms_norm import rms_norm as rms_norm_op

__all__ = ["rms_norm_forward"]

TOLERANCE = 1e-5  # such forwards often compute in float32 inside, whatever they are given


def rms_norm_forward(module: nn.Module) -> Callable[..., Any] | None:
    """A forward that calls the op, where ``module`` is a root mean square normalisation with a weight; else None."""
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or weight.numel() < 2 or weight.is_meta:
        return None
    if len(module._parameters) != 1 or module._buffers or module._modules or module._forward_pre_hooks:
        return None
    codes = _straight(type(module))
    if codes is None or not {"mean"} <= (names := {n for c in codes for n in c.co_names}) or not names & _ROOTS:
        return None
    for name, value in vars(module).items():
        if isinstance(value, float) and 0.0 < value < 0.1 and name in names and _agrees(module, value):
            return _forward(name)
    return None


_ROOTS = {"rsqrt", "sqrt", "pow"}


def _straight(cls: type) -> list[types.CodeType] | None:
    """The codes of a class's forward and of the methods that it calls, or None where one of them branches, loops,
    makes functions, or reads a global that is not torch."""
    found: list[types.CodeType] = []
    queue = ["forward"]
    while queue:
        method = inspect.getattr_static(cls, queue.pop(), None)
        function = method.__func__ if isinstance(method, staticmethod) else method
        if not isinstance(function, types.FunctionType) or function.__code__ in found:
            continue
        if function.__module__.partition(".")[0] == "torch":
            continue
        code = function.__code__
        for instruction in dis.get_instructions(code):
            if instruction.opcode in (*dis.hasjrel, *dis.hasjabs) or instruction.opname == "MAKE_FUNCTION":
                return None
            if instruction.opname == "LOAD_GLOBAL" and function.__globals__.get(instruction.argval) is not torch:
                return None
        found.append(code)
        queue += code.co_names
    return found or None


def _agrees(module: nn.Module, eps: float) -> bool:
    """Whether a float64 copy of the module, with random weights, computes the formula with this eps."""
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            probe = copy.deepcopy(module).double().cpu()
            weight = probe._parameters["weight"]
            assert weight is not None
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
            x = torch.randn(5, weight.numel(), generator=generator, dtype=torch.float64)
            x *= torch.tensor([1e-2, 1.0, 30.0, 0.3, 1.0], dtype=torch.float64)[:, None] * eps**0.5
            x[3:] /= eps**0.5
            got = type(probe).forward(probe, x)
            want = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
            return bool(
                isinstance(got, Tensor)
                and got.shape == want.shape
                and got.dtype is x.dtype
                and ((got - want).abs() <= TOLERANCE * want.abs()).all()
            )
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return False  # it does not take a matrix of rows; so it is something else


@functools.cache
def _forward(eps: str) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.weight
        if calls.pays_fused(x) and calls.expressible(x, weight):
            output: Tensor = rms_norm_op(x, weight, eps=getattr(self, eps))
            return output
        return type(self).forward(self, x)  # type: ignore[no-any-return]

    return forward
