"""What a fix asks of the swapped program before it is measured: it is surveyed while it is swapped, and foretold when
all is as it was."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kernelworks.diagnose.forecast.device import Device
from kernelworks.diagnose.forecast.predict import Forecast, predict
from kernelworks.diagnose.sites.modules import Roots, SwappedModules
from kernelworks.profile.program import Program
from kernelworks.profile.timeline import Timeline, plain_run, survey_all_calls, survey_limit
from kernelworks.profile.trace import Trace, without_collection

__all__ = ["Forecaster", "SurveyResult"]

TURNS, FAULTS_S = 5, 4.0


class SurveyResult(NamedTuple):
    trace: Trace
    capture: Any


@dataclass
class Forecaster:
    """``budget_s`` is for the survey, the capture, the calls by themselves, and the runs until malloc has adapted: so
    much for each."""

    timeline: Timeline
    device: Device
    budget_s: float
    peak_memory: list[int | None] = field(default_factory=list)

    @property
    def most_rounds(self) -> int:
        return self.device.most_rounds

    def with_sync(self, program: Program) -> Program:
        """The program, over when the device is done, and what its collections of garbage take by themselves."""
        return replace(program, run=self.device.with_sync(program.run), collected=self.timeline.collected)

    def before(self, program: Program) -> None:
        """Called ahead of the swap."""
        self.peak_memory = [self.device.peak_bytes(program.run)]

    def needs(self) -> float:
        """Seconds for a survey of the first calls, a record of all of them, and sorting them into what they cost."""
        return 2 * self.timeline.looking_s

    def survey(self, program: Program) -> SurveyResult:
        """What ``forecast`` wants to know of the swapped program; called while it is swapped."""
        self.peak_memory.append(self.device.peak_bytes(program.run))
        trace, persistent = survey_all_calls(program.run, survey_limit(self.budget_s, self.timeline.wall))
        with self.device.capture(persistent, self.budget_s) as capture:
            program.run()
        return SurveyResult(trace, capture)

    def forecast(self, program: Program, roots: Roots, surveyed: SurveyResult) -> Forecast:
        """What the swapped program will take; called when everything is as it was."""
        self.device.give_back()
        trace = surveyed.trace
        isolated_costs = self.device.isolated_costs(trace.calls, surveyed.capture, self.budget_s)
        self.device.give_back()
        now, faults = self._measure_faults(program, roots, min(FAULTS_S, self.budget_s))
        with without_collection():
            found = predict(
                self.timeline, trace.calls, isolated_costs, self.device, freed=trace.freed, faults=faults, now=now
            )
        return found

    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside the figures."""
        if len(self.peak_memory) < 2 or None in self.peak_memory:
            return ()
        before, after = ((peak or 0) / 1e9 for peak in self.peak_memory)
        return (f"peak device memory {before:.2f} GB before, {after:.2f} GB after",)

    def _measure_faults(self, program: Program, roots: Roots, budget_s: float) -> tuple[float, int]:
        """What the original takes now, and the page faults of the swapped program as it will be measured: in turns with
        the original. How many there are depends on what ran before, so malloc gets some runs to adapt to what is
        freed; the last run counts. The swapped program's times are not looked at."""
        faults, start, walls = 0, time.perf_counter(), list[float]()
        for turn in range(TURNS):
            walls.append(program.median(1, alone=True))
            if self.device.takes_pages:
                with SwappedModules(roots):
                    faults = plain_run(program.run).faults
            if turn and time.perf_counter() - start > budget_s:
                break
        return statistics.median(walls[1:]), faults
