"""``--fix`` on a GPU: how the swapped program is surveyed, and predicted by playing host and device together."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernelworks.diagnose.fix import Forecast
from kernelworks.diagnose.predict_gpu import Words, predict, replayed
from kernelworks.diagnose.roots import Roots
from kernelworks.observe.places import Survey
from kernelworks.observe.program import Program
from kernelworks.observe.timeline_gpu import GpuTimeline, waiting
from kernelworks.observe.trace import Trace, record, without_collection
from kernelworks.records import GpuCeilings

__all__ = ["GpuSide"]


class Surveyed(NamedTuple):
    trace: Trace
    words: Words


@dataclass
class GpuSide:
    """A fix on a GPU; a ``fix.Side``. It also says how much device memory each program has at once."""

    timeline: GpuTimeline
    ceilings: GpuCeilings
    most_rounds: int = 15
    memory_before: int = 0
    memory_after: int = 0

    def whole(self, program: Program) -> Program:
        return Program(program.name, waiting(program.run))

    def before(self, program: Program) -> None:
        self.memory_before = _peak_bytes(program)

    def survey(self, program: Program) -> Surveyed:
        self.memory_after = _peak_bytes(program)
        trace = record(program.run, survey=Survey())
        trace.output = None
        with Words() as words:
            program.run()
        return Surveyed(trace, words)

    def forecast(self, program: Program, roots: Roots, surveyed: Surveyed) -> Forecast:
        _give_back()
        costs = replayed(surveyed.trace.calls, self.ceilings.l2_bytes, surveyed.words)
        with without_collection():
            found = predict(self.timeline, surveyed.trace.calls, costs, self.ceilings)
        _give_back()
        return Forecast(found.share, found.unknown)

    def notes(self) -> tuple[str, ...]:
        before, after = self.memory_before / 1e9, self.memory_after / 1e9
        return (f"peak device memory {before:.2f} GB before, {after:.2f} GB after",)


def _peak_bytes(program: Program) -> int:
    """The most bytes of tensors that a run has on the device at once."""
    torch.cuda.reset_peak_memory_stats()
    program.run()
    return torch.cuda.max_memory_allocated()


def _give_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
