"""What becomes of a call once swapped, and what that would bring: asked of the timings, and raced where there are none.

A call of the program's that no timing speaks of is settled as ``settle`` would, on arguments of its shapes, strides and
dtypes. What is promised is a share of the time that the program's own calls took.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import native
from kernelworks.contract import TensorSpec
from kernelworks.diagnose.forecast.swapped_kernel import Asked, asked
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.choose import eligible
from kernelworks.dispatch.tuning_records import Timing
from kernelworks.machine import environment
from kernelworks.measure.autotune import settle
from kernelworks.nn.expected_kernels import outlook
from kernelworks.profile.cost.shapes import signature
from kernelworks.profile.trace import Call

__all__ = ["Promise", "Raced", "Races"]

MOST_BYTES = 512 << 20
CAUTION = 0.8  # of the cautious end: the arguments are alike, not the program's own


@dataclass(frozen=True)
class Raced:
    """The share of a call's time that a row gives back, from cautious to hopeful. 0 where it is no quicker."""

    low: float
    high: float

    @classmethod
    def of(cls, timing: Timing) -> Raced:
        if not timing.won:
            return cls(0.0, 0.0)
        races = [race for race in (timing.whole, timing.backward) if race is not None]
        least, most = timing.ratio, min(max(race.halves) for race in races)
        return cls(CAUTION * (1 - 1 / least), 1 - 1 / most)


@dataclass(frozen=True)
class Promise:
    """What a call would take once swapped (``row``, "" for torch's own), what that brings where it was ``raced``, and
    whether rows of ours ``may`` serve it at all."""

    row: str = ""
    raced: Raced | None = None
    may: bool = False


NONE = Promise()


@dataclass
class Races:
    """Asks of calls by their kind, and races the first that are not known until ``budget_s`` is spent."""

    budget_s: float
    threads: int
    device: str = "cpu"
    kind: str | None = None  # of machine, by default this one
    say: Callable[[str], None] | None = None
    spent: float = 0.0
    known: dict[Any, Promise] = field(default_factory=dict)

    def of(self, call: Call) -> Promise:
        key = (call.name, call.recorded, signature(call), repr(call.scalars))
        if key not in self.known:
            self.known[key] = self._promise(call)
        return self.known[key]

    def lacks(self, ops: Sequence[str], dtype: str) -> str:
        """Why none of these ops of ours would be quicker on tensors of a dtype, or "" where one may be."""
        found = [outlook(op, getattr(torch, dtype, torch.float32), self.device, kind=self.kind) for op in ops]
        return "" if any(o.ours for o in found) else found[0].why

    def _promise(self, call: Call) -> Promise:
        found = asked(call, self.threads, self.device, self.kind)
        if found is None:
            return NONE
        if _timing(found, self.kind) is None and self.spent < self.budget_s and self.kind is None and _ready():
            begin = time.perf_counter()
            if _race(found, self.say):
                found = asked(call, self.threads, self.device, self.kind) or found
            self.spent += time.perf_counter() - begin
        timing = _timing(found, self.kind)
        may = bool(eligible(found.op, found.request, self.kind)[0])
        return Promise(found.row, None if timing is None else Raced.of(timing), may)


def _timing(found: Asked, kind: str | None) -> Timing | None:
    """The timing that decided, or that would where rows are taken in list order."""
    if found.choice.timing is not None or found.choice.native or kind is not None:
        return found.choice.timing
    ways, _ = eligible(found.op, found.request)
    exact, _ = tuning_records.held(found.op.name, found.op.contract, found.request, ways)
    return next((t for t in exact if t.way.split("+")[0] == found.choice.row.name), None)


def _ready() -> bool:
    """Whether calls enter ops as they will: a fix and ``settle`` build that first, and who only looks does not wait."""
    return environment.native() != "build" or native.found() is not None


def _race(found: Asked, say: Callable[[str], None] | None) -> bool:
    """Settles the call on arguments made up for it; False where they cannot be, or nothing may be chosen."""
    request = found.request
    if request.device != "cpu" or not eligible(found.op, request)[0] or found.op.contract.mutates:
        return False
    try:
        args = tuple(_made(value) for value in request.args.values())
        for name, value in zip(request.args, args, strict=True):
            if name in request.wanted:
                value.requires_grad_()
        with torch.set_grad_enabled(bool(request.wanted)):
            settle(found.op.call, *args, progress=say)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False  # arguments that only the program can make
    return True


def _made(value: Any) -> Any:
    if not isinstance(value, TensorSpec):
        return value
    if math.prod(value.shape) * value.dtype.itemsize > MOST_BYTES:
        raise ValueError("too large to make up")
    made: Tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
    if value.dtype.is_floating_point:
        return made.uniform_(-1.0, 1.0)
    return made.fill_(1) if value.dtype is torch.bool else made.zero_()
