"""``--fix`` on the CPU: how the swapped program is surveyed, and predicted from replays of its calls of ours."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import statistics
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernelworks.diagnose.fix import Forecast
from kernelworks.diagnose.predict import Capture, predict, replay
from kernelworks.diagnose.roots import Roots, Swapped
from kernelworks.observe.overhead import Floors
from kernelworks.observe.places import Survey
from kernelworks.observe.program import Program
from kernelworks.observe.timeline import Timeline, most_surveyed, plain_run
from kernelworks.observe.trace import Trace, join, record
from kernelworks.records import Ceilings

__all__ = ["CpuSide"]

FAULT_RUNS, SETTLE_S = 5, 4.0


class Surveyed(NamedTuple):
    trace: Trace
    capture: Capture


@dataclass
class CpuSide:
    """A fix on the CPU; a ``fix.Side``."""

    timeline: Timeline
    floors: Floors
    ceilings: Ceilings
    most_rounds: int = 5
    budget_s: float = math.inf  # for the survey, the capture, the replays, and the runs that settle: so much for each

    def whole(self, program: Program) -> Program:
        return program

    def before(self, program: Program) -> None:
        pass

    def survey(self, program: Program) -> Surveyed:
        survey = Survey(most_surveyed(self.budget_s, self.timeline.wall))
        trace = record(program.run, survey=survey)
        trace.output = None
        if trace.cut:
            whole = record(program.run)
            whole.output = None
            trace.calls = join(whole, trace)
        with Capture(survey.persistent, self.budget_s) as capture:
            program.run()
        return Surveyed(trace, capture)

    def forecast(self, program: Program, roots: Roots, surveyed: Surveyed) -> Forecast:
        times = replay(surveyed.capture.captured, self.budget_s)
        surveyed.capture.captured.clear()
        now, faults = _settled(program, roots, min(SETTLE_S, self.budget_s))
        threads = torch.get_num_threads()
        found = predict(self.timeline, surveyed.trace, times, faults, self.floors, threads, self.ceilings, now)
        return Forecast(found.share, found.unknown)

    def notes(self) -> tuple[str, ...]:
        return ()


def _settled(program: Program, roots: Roots, budget_s: float) -> tuple[float, int]:
    """What the original takes now, and the page faults of the swapped program as it will be measured: in turns with the
    original. How many there are depends on what ran before: what the survey and the replays left is given back first,
    and malloc gets some runs to settle, as it adapts to what is freed; the last run counts. The swapped program's times
    are not looked at."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    faults, start, walls = 0, time.perf_counter(), list[float]()
    for turn in range(FAULT_RUNS):
        walls.append(plain_run(program.run).wall)
        with Swapped(roots):
            faults = plain_run(program.run).faults
        if turn and time.perf_counter() - start > budget_s:
            break
    return statistics.median(walls[1:]), faults
