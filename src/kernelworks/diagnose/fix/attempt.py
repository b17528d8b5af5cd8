"""One candidate on its way through a search: what was predicted of it, what it saved, and its outcome."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kernelworks.diagnose.fix.alternate import ms, noise_between
from kernelworks.diagnose.optimization import Candidate, Change, Optimization, Promise
from kernelworks.diagnose.verify.agreement import Agreement
from kernelworks.measure.clock.noise import SampledWindows
from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED, TriedOptimization

__all__ = ["Try", "reason_not_tried", "reason_without_leave"]

MOST_SHARE = 2.0  # of the program's time: a prediction beyond it is a disturbance, of no known size


@dataclass(eq=False)
class Try:
    """``upon`` was in place when it was predicted. ``told`` is what it was predicted to save of the program that it was
    measured against. Both ``predicted`` and ``told`` are shares of the wall clock."""

    optimization: Optimization
    candidate: Candidate
    promise: Promise | None = None  # as it is reported: calibrated
    predicted: float | None = None  # saved, before calibration
    upon: tuple[Try, ...] = ()
    why: str = ""
    change: Change | None = None
    agreement: Agreement | None = None
    found: SampledWindows[tuple[float, float]] | None = None
    told: float | None = None
    applied: bool = False
    remaining: float = 1.0  # the share of the original's time that was left once it was applied
    displaced: float = 1.0  # the share that what it was measured in the place of had left of the time without that
    rejected: bool = False  # it was put in place, and failed, was not verified, or saved nothing significant
    allotted_s: float = 0.0  # seconds that a prediction had which did not end
    needs_s: float = 0.0  # the budget that would do, if the budget was too small for it
    loads_s: float | None = None  # seconds of its compiler, if another process has compiled it

    def note_promise(self, found: Promise, upon: Sequence[Try]) -> Promise:
        """Notes what was predicted with those in place, within what can be predicted."""
        if found.saves is not None and not math.isfinite(found.saves):
            found = dataclasses.replace(found, saves=None)
        if found.saves is not None:
            found = dataclasses.replace(found, saves=max(found.saves, 1 - MOST_SHARE))
        self.promise, self.predicted, self.upon = found, found.saves, tuple(upon)
        return found

    @property
    def outcome(self) -> str:
        return APPLIED if self.applied else REJECTED if self.rejected else NOT_TRIED

    @property
    def is_settled(self) -> bool:
        """Whether it has had its turn."""
        return self.applied or self.rejected or bool(self.why)

    @property
    def saves(self) -> float | None:
        return None if self.promise is None else self.promise.saves

    @property
    def turns(self) -> tuple[tuple[float, float], ...]:
        """Wall clocks without it and with it."""
        return self.found.samples if self.found is not None else ()

    @property
    def pairs(self) -> tuple[list[float], list[float]]:
        return [a for a, _ in self.turns], [b for _, b in self.turns]

    @property
    def saved_share(self) -> float:
        """The share that it saved when it was measured."""
        before, after = self.pairs
        return 1 - statistics.median(after) / statistics.median(before) if before else 0.0

    @property
    def saved_in_all(self) -> float:
        """The share that it saves of a program without it and without what it was measured in the place of."""
        return 1 - (1 - self.saved_share) * self.displaced

    def record(self, wall: float) -> TriedOptimization:
        before, after = self.pairs
        wall = statistics.median(before) if before else wall
        promise, agreement = self.promise or Promise(None), self.agreement or Agreement(0.0, 0.0, False)
        told = self.told if before else self.saves
        return TriedOptimization(
            optimization=self.candidate.optimization, place=str(self.candidate.site), says=self.candidate.says,
            code=self.candidate.code, outcome=self.outcome, why=self.why,
            predicted_gain_s=None if told is None else told * wall,
            gain_s=wall - statistics.median(after) if after else None, cost_s=promise.cost_s,
            cost_bytes=promise.cost_bytes, error_before=agreement.before, error_after=agreement.after,
            against=agreement.against, changes=self.candidate.changes, advice=self.candidate.advice, how=promise.how,
            noise_s=noise_between(self.turns) if before else None, needs_s=self.needs_s,
            rough=self.found is not None and self.found.loud and self.why == str(self.found.noise),
        )  # fmt: skip


def reason_not_tried(gain: float, noise: float, wall: float) -> str:
    """Why a candidate is not tried."""
    if gain <= wall * (1 - MOST_SHARE):
        return f"with it the program is predicted to take {MOST_SHARE:.0f} times as long, or more"
    if gain < -noise:
        return f"it is predicted to cost {ms(-gain)} +- {ms(noise)}"
    return f"it is predicted to {'cost' if gain < 0 else 'save'} {ms(abs(gain))} +- {ms(noise)}, not significant"


def reason_without_leave(one: Candidate | TriedOptimization, allow: Collection[str]) -> str:
    """Why a candidate is not tried whatever the budget; "" if it is."""
    if one.advice:
        return "advice: only the program's author can do it"
    if one.changes and one.changes not in allow:
        return f"it changes numbers: allow {one.changes} to have it tried"
    return ""
