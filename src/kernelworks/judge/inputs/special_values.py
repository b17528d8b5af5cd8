"""Inputs that no problem draws and users have: NaN, equal elements, other numbers than the one that is always given.
They are asked behind the verdict, and answers to them are remarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.judge.inputs.draws import like_given
from kernelworks.judge.inputs.values import is_differentiable

__all__ = ["LOOSE", "SPECIAL_DRAWS", "special_inputs", "without_end"]

MOST_NAN = 4  # elements of an input
LEVELS = 4  # numbers among which the elements of an input with equal ones are

# What is said of an answer that is another one there than the reference's.
SPECIAL_DRAWS = {
    "NaN": "NaN in the inputs is not kept as the reference keeps it",
    "equal elements": "of inputs with equal elements and zeros its answer is another one than the reference's",
    "other constants": "an argument that the problem always gives as one number is taken for that number",
}
LOOSE = ("NaN",)  # where NaN alone is compared: no bound is known of what a NaN is near


def without_end(reference: Tensor, bound: Tensor) -> Tensor:
    """A bound that every number is within and NaN is not; of whole numbers their own."""
    if reference.is_complex():
        return torch.full(bound.shape, complex(math.inf, math.inf), dtype=torch.complex128, device=bound.device)
    if not reference.is_floating_point():
        return bound
    return torch.full(bound.shape, math.inf, dtype=torch.float64, device=bound.device)


def _with_nan(value: Tensor, generator: torch.Generator) -> Tensor:
    if not value.numel():
        return value
    found = value.clone()
    count = int(torch.randint(1, MOST_NAN + 1, (), generator=generator))
    found.view(-1)[torch.randint(value.numel(), (count,), generator=generator)] = float("nan")
    return found


def _equal(value: Tensor, generator: torch.Generator) -> Tensor:
    """One of a few numbers each, zero among them where it lies in the range."""
    low, high = value.min(), value.max()
    found = low + (high - low) * torch.randint(LEVELS, value.shape, generator=generator) / (LEVELS - 1)
    zeros = torch.rand(value.shape, generator=generator) < 1 / LEVELS
    return torch.where(zeros, torch.zeros(()).clamp(low, high), found)


def _is_constant(value: Any) -> bool:
    return is_differentiable(value) and value.numel() > 1 and bool((value == value.reshape(-1)[0]).all())


def _other_constant(value: Any, generator: torch.Generator) -> Any:
    """Numbers about the one that is given everywhere; of a number of Python's one that is somewhat larger."""
    drawn = torch.rand(value.shape if isinstance(value, Tensor) else (), generator=generator)
    if isinstance(value, Tensor):
        return (value + drawn.to(value.dtype) - 0.5).to(value.dtype)
    return value * (1.25 + 0.5 * float(drawn))


def special_inputs(
    given: Sequence[Any], others: Sequence[Any], draw: str, fixed: frozenset[int], generator: torch.Generator
) -> list[Any]:
    """The arguments of a draw of ``SPECIAL_DRAWS``; ``others`` are what the problem gives another time. Raises
    LookupError where it has none that this is about."""
    how: Callable[[Tensor, torch.Generator], Tensor] = _with_nan if draw == "NaN" else _equal
    found = []
    for at, (value, other) in enumerate(zip(given, others, strict=True)):
        changed = value
        if at in fixed:
            pass
        elif draw == "other constants":
            if _is_constant(value) or (isinstance(value, float) and value == other and value):
                changed = _other_constant(value, generator)
        elif is_differentiable(value):
            changed = like_given(value, other, how, generator)
        found.append(changed)
    if all(changed is value for changed, value in zip(found, given, strict=True)):
        raise LookupError(f"no argument takes {draw}")
    return found
