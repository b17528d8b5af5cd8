"""What a row would bring, found out: the call that a swapped model makes, raced against torch's own.

On arguments of the call's shapes, strides and dtypes, at once and in turns, so that whatever slows the machine slows
both. What is promised is a share of the time that the program's own calls took.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.diagnose.rows import called
from kernelworks.diagnose.shapes import signature
from kernelworks.diagnose.trace import Call
from kernelworks.diagnose.work import Operand

__all__ = ["Races", "Raced"]

LEAST_ROUNDS, MOST_ROUNDS = 5, 25
SAMPLE_S = 0.002  # of each arm in a round
MOST_BYTES = 512 << 20
MOST_COPIES = 8
CAUTION = 0.8  # of the cautious end: the arguments are alike, not the program's own


@dataclass(frozen=True)
class Raced:
    """The share of a call's time that a row gives back, from cautious to hopeful. 0 where it is no quicker."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> Raced:
        """From samples of our time over torch's."""
        first, _, third = statistics.quantiles(ratios, n=4)
        low, high = max(0.0, 1 - third), max(0.0, 1 - first)
        return cls(CAUTION * low, high) if low > 0 else cls(0.0, 0.0)


@dataclass
class Races:
    """Races of calls by their kind, the longest first, until ``budget_s`` is spent."""

    budget_s: float
    cache_bytes: int  # of the last level: weights come from beyond it, as in the program
    spent: float = 0.0
    known: dict[Any, Raced | None] = field(default_factory=dict)

    def of(self, call: Call) -> Raced | None:
        """What the row that the call would take brings; None where it was not raced."""
        key = (call.name, signature(call), repr(call.scalars))
        if key not in self.known:
            begin = time.perf_counter()
            self.known[key] = self._raced(call) if self.spent < self.budget_s else None
            self.spent += time.perf_counter() - begin
        return self.known[key]

    def _raced(self, call: Call) -> Raced | None:
        try:
            with torch.inference_mode():
                arms = self._arms(call)
                return self._run(*arms) if arms is not None else None
        except (TypeError, ValueError, RuntimeError, IndexError):
            return None  # arguments that only the program can make

    def _arms(self, call: Call) -> tuple[list[Callable[[], Any]], list[Callable[[], Any]]] | None:
        torchs: list[Callable[[], Any]] = []
        ours: list[Callable[[], Any]] = []
        made: list[Tensor] = []

        def make(operand: Operand) -> Tensor:
            made.append(_tensor(operand))
            return made[-1]

        while len(ours) < MOST_COPIES:
            before = len(made)
            mine = called(call, make)
            if mine is None:
                return None
            again = iter(made[before:])
            theirs = called(call, lambda operand, again=again: next(again), F)  # type: ignore[misc]
            if theirs is None:
                return None
            ours.append(mine)
            torchs.append(theirs)
            size = sum(t.nbytes for t in made)
            each = size / len(ours)
            if size > 2 * self.cache_bytes or size + each > MOST_BYTES:
                break
        return torchs, ours

    def _run(self, torchs: list[Callable[[], Any]], ours: list[Callable[[], Any]]) -> Raced:
        begin = time.perf_counter()
        seconds = 0.0
        for arm in (torchs, ours, torchs, ours):  # the last two count: a row is built, memory is taken
            seconds = _mean(arm, 1, 0)
        repeats = max(1, round(SAMPLE_S / max(seconds, 1e-9)))
        ratios: list[float] = []
        while len(ratios) < LEAST_ROUNDS or (
            len(ratios) < MOST_ROUNDS and time.perf_counter() - begin < 0.25 * self.budget_s
        ):
            first = len(ratios)
            order = (torchs, ours) if first % 2 else (ours, torchs)
            times = {id(arm): _mean(arm, repeats, first) for arm in order}
            ratios.append(times[id(ours)] / times[id(torchs)])
        return Raced.of(ratios)


def _mean(arm: list[Callable[[], Any]], repeats: int, first: int) -> float:
    start = time.perf_counter()
    for i in range(first, first + repeats):
        arm[i % len(arm)]()
    return (time.perf_counter() - start) / repeats


def _tensor(operand: Operand) -> Tensor:
    if operand.bytes > MOST_BYTES or math.prod(operand.shape) * operand.dtype.itemsize > 4 * MOST_BYTES:
        raise ValueError("too large to make up")
    made = torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype)
    if operand.dtype.is_floating_point:
        return made.uniform_(-1.0, 1.0)
    return made.fill_(1) if operand.dtype is torch.bool else made.zero_()
