"""What becomes of a call once swapped, and what it would gain: read from tuning records, else benchmarked.

A call without a tuning record is autotuned as ``autotune`` would, on arguments of its shapes, strides and dtypes. What
is predicted is a share of the time that the program's own calls took.
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
from kernelworks.contract.complex_numbers import as_parts, is_inexact
from kernelworks.diagnose.forecast.swapped_kernel import SwappedCall, swap_call
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.choose import eligible_ways
from kernelworks.dispatch.tuning_records import TuningRecord
from kernelworks.machine import environment
from kernelworks.measure.autotune import autotune
from kernelworks.nn.expected_kernels import outlook
from kernelworks.profile.cost.shapes import signature
from kernelworks.profile.trace import Call

__all__ = ["GainRange", "NoRaces", "Promise", "Races"]

MOST_BYTES = 512 << 20
CAUTION = 0.8  # the low end is taken times this: the arguments are alike, not the program's own


@dataclass(frozen=True)
class GainRange:
    """The share of a call's time that a kernel recovers, its low and its high end. 0 if it is no faster."""

    low: float
    high: float

    @classmethod
    def of(cls, tuning_record: TuningRecord) -> GainRange:
        if not tuning_record.beats_torch:
            return cls(0.0, 0.0)
        races = [race for race in (tuning_record.whole, tuning_record.backward) if race is not None]
        least, most = tuning_record.ratio, min(max(race.halves) for race in races)
        return cls(CAUTION * (1 - 1 / least), 1 - 1 / most)


@dataclass(frozen=True)
class Promise:
    """What a call would take once swapped (``kernel``, "" for torch's own), its ``gain`` if that is known, and whether
    kernels of ours ``may`` serve it at all."""

    kernel: str = ""
    gain: GainRange | None = None
    may: bool = False


NO_PROMISE = Promise()


@dataclass
class Races:
    """Asks of calls by their signature, and benchmarks those that are not known until ``budget_s`` is spent."""

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
        """Why none of these ops of ours would be faster on tensors of a dtype, or "" if one may be."""
        found = [outlook(op, getattr(torch, dtype, torch.float32), self.device, kind=self.kind) for op in ops]
        return "" if any(o.has_our_kernel for o in found) else found[0].why

    def _promise(self, call: Call) -> Promise:
        found = swap_call(call, self.threads, self.device, self.kind)
        if found is None:
            return NO_PROMISE
        if _deciding_record(found, self.kind) is None and self.spent < self.budget_s and self.kind is None and _ready():
            begin = time.perf_counter()
            if _race(found, self.say):
                found = swap_call(call, self.threads, self.device, self.kind) or found
            self.spent += time.perf_counter() - begin
        tuning_record = _deciding_record(found, self.kind)
        may = bool(eligible_ways(found.op, found.request, self.kind)[0])
        return Promise(found.kernel, None if tuning_record is None else GainRange.of(tuning_record), may)


class NoRaces(Races):
    """Asks nothing of any call."""

    def of(self, call: Call) -> Promise:
        return NO_PROMISE

    def lacks(self, ops: Sequence[str], dtype: str) -> str:
        return "not asked"


def _deciding_record(swapped: SwappedCall, kind: str | None) -> TuningRecord | None:
    """The tuning record that decided, or that would if kernels are taken in list order."""
    if swapped.choice.tuning_record is not None or swapped.choice.native or kind is not None:
        return swapped.choice.tuning_record
    ways, _ = eligible_ways(swapped.op, swapped.request)
    exact, _ = tuning_records.valid_records(swapped.op.name, swapped.op.contract, swapped.request, ways)
    return next((t for t in exact if t.way.split("+")[0] == swapped.choice.kernel.name), None)


def _ready() -> bool:
    """Whether the native entry is built: a fix and ``autotune`` build it first, a diagnosis alone does not wait."""
    return environment.native() not in ("background", "build") or native.find_extension() is not None


def _race(swapped: SwappedCall, say: Callable[[str], None] | None) -> bool:
    """Autotunes the call on arguments made up for it; False if they cannot be, or nothing may be chosen."""
    request = swapped.request
    if request.device != "cpu" or not eligible_ways(swapped.op, request)[0] or not swapped.op.contract.returned_outputs:
        return False
    try:
        args = tuple(_made(value) for value in request.args.values())
        for name, value in zip(request.args, args, strict=True):
            if name in request.wanted:
                value.requires_grad_()
        with torch.set_grad_enabled(bool(request.wanted)):
            autotune(swapped.op.call, *args, progress=say)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False  # arguments that only the program can make
    return True


def _made(value: Any) -> Any:
    if not isinstance(value, TensorSpec):
        return value
    if math.prod(value.shape) * value.dtype.itemsize > MOST_BYTES:
        raise ValueError("too large to make up")
    made: Tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
    if is_inexact(value.dtype):
        as_parts(made).uniform_(-1.0, 1.0)
        return made
    return made.fill_(1) if value.dtype is torch.bool else made.zero_()
