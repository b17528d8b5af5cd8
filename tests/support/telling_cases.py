"""Which cases of a contract tell most: what `make test` has time for, of an op that has a hundred.

A case in a dtype has traits: what its tensors hold (infinities, NaN, numbers at both ends of the range, zeros), where
they end (a ragged last dimension, a single element, none), how it is tried (as views of every layout, with gradients),
and which arguments are given. Pairs are picked greedily, the most traits that none before has for the least work. Once
every trait is there they are picked anew from those that are left, until the work is what was granted. Work is counted
in elements and calls, not in seconds: the same pairs are picked on every machine.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Case
from kernelworks.dispatch.op import Op
from kernelworks.verify.reference import flat_outputs

__all__ = ["SHORT", "SMOKE", "telling", "traits_of"]

SMOKE, SHORT = 150, 600  # of work: every trait once; what takes a second or two of an op
CALL = 20_000  # elements that take as long as a call
LANES = 16
LARGE = 50_000  # elements; cases with more are there for their size
INF = float("inf")
HUGE, TINY = 1e18, 1e-18  # their squares leave the range of float32


def telling(op: Op, work: int, *, most: int | None = None, once: bool = False) -> tuple[Case, ...]:
    """The cases, each with the dtypes that it is worth; of those with at most ``most`` elements. With ``once`` no more
    are picked when every trait is there."""
    picked: dict[str, list[torch.dtype]] = {}
    for case, dtype in _picked(op, work, most, once):
        picked.setdefault(case.name, []).append(dtype)
    return tuple(
        dataclasses.replace(case, dtypes=tuple(d for d in case.dtypes if d in picked[case.name]))
        for case in op.contract.cases
        if case.name in picked
    )


def _picked(op: Op, work: int, most: int | None, once: bool = False) -> Iterator[tuple[Case, torch.dtype]]:
    left = [pair for pair in _pairs(op) if most is None or pair[3] <= most]
    seen: set[Any] = set()
    while left:
        best = max(left, key=lambda pair: len(pair[1] - seen) / pair[2])
        key, traits, price, _ = best
        if seen and not traits - seen:
            if once:
                return
            seen = set()
            continue
        work -= price
        if work < 0:
            return
        seen |= traits
        left.remove(best)
        yield key


@functools.cache
def _pairs(op: Op) -> tuple[tuple[tuple[Case, torch.dtype], frozenset[Any], float, int], ...]:
    """(case and dtype, traits, work, elements) of all."""
    found = []
    for case in op.contract.cases:
        made = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
        own = frozenset(_traits(made))
        tensors = [t for t in flat_outputs(list(made.values())) if isinstance(t, Tensor)]
        elements = sum(t.numel() for t in tensors)
        gradients = case.gradients and bool(op.contract.differentiable)
        calls = (10 if case.layouts else 2) + 2 * gradients
        tried = {"layouts": case.layouts, "gradients": gradients, "flow": gradients and case.flow is not None}
        for dtype in case.dtypes:
            by_dtype = [t for t in tried if tried[t]] + [t for t in BY_DTYPE if t in own]
            traits = frozenset({dtype, *own, *((dtype, trait) for trait in by_dtype)})
            found.append(((case, dtype), traits, calls * (1 + elements / CALL), elements))
    return tuple(found)


def traits_of(op: Op, cases: tuple[Case, ...]) -> set[Any]:
    """What is there of those cases in those dtypes."""
    wanted = {(case.name, dtype) for case in cases for dtype in case.dtypes}
    return {trait for (case, dtype), traits, *_ in _pairs(op) if (case.name, dtype) in wanted for trait in traits}


BY_DTYPE = ("ragged", "huge", "tiny", "infinite", "no number")  # what is another matter in every dtype


def _traits(made: dict[str, Any]) -> Iterator[Any]:
    for name, value in made.items():
        if not isinstance(value, Tensor):
            yield name, value if isinstance(value, (bool, str)) else type(value).__name__
            continue
        length = value.shape[-1] if value.dim() else 1
        yield name, value.dim(), value.dtype.is_floating_point
        yield name, "length", min(length, 2), length % LANES == 0, length > LANES, length > 64 * LANES
        if length % LANES and length > LANES:
            yield "ragged"
        if not value.numel():
            yield name, "no elements"
        elif value.is_floating_point() and value.numel() <= LARGE:
            yield from _of_values(name, value.float())


def _of_values(name: str, value: Tensor) -> Iterator[Any]:
    size = value.abs()
    most = float(size.amax())  # NaN where an element is
    some = size.masked_fill_(size == 0, INF)
    extreme = not most <= HUGE  # else two passes over the elements tell all: a contract has thousands of tensors
    for trait, there in (
        ("no number", most != most),
        ("infinite", extreme and bool(value.isinf().any())),
        ("huge", extreme and bool(((some > HUGE) & (some < INF)).any())),
        ("tiny", bool((some < TINY).any())),
        ("zeros", most == 0),
    ):
        if there:
            yield trait
            yield name, trait
