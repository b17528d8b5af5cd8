"""One offer on its way through a search: what was predicted of it, what it brought, and why it is in or out."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from kernelworks.diagnose.fix.alternate import ms
from kernelworks.diagnose.optimization import Change, Offer, Promise, Remedy
from kernelworks.diagnose.verify.agreement import Agreement
from kernelworks.measure.clock.noise import Sifted
from kernelworks.records.fix import Tried

__all__ = ["MOST_SHARE", "Try", "expected"]

MOST_SHARE = 2.0  # of the program's time: what is predicted beyond it is a disturbance, of no known size


@dataclass(eq=False)
class Try:
    """``upon`` is what was in place when it was predicted, ``told`` what was predicted to be saved of the program that
    it was measured against; both ``predicted`` and ``told`` are shares of the wall clock."""

    remedy: Remedy
    offer: Offer
    promise: Promise | None = None  # as it is told: calibrated
    predicted: float | None = None  # saved, before calibration
    upon: tuple[Try, ...] = ()
    why: str = ""
    change: Change | None = None
    agreement: Agreement | None = None
    found: Sifted[tuple[float, float]] | None = None
    told: float | None = None
    taken: bool = False
    room: float = 0.0  # seconds that a prediction which did not end had had

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
    def saved(self) -> float:
        """What it saved when it was measured, as a share."""
        before, after = self.pairs
        return 1 - statistics.median(after) / statistics.median(before) if before else 0.0

    def record(self, wall: float) -> Tried:
        before, after = self.pairs
        wall = statistics.median(before) if before else wall
        promise, agreement = self.promise or Promise(None), self.agreement or Agreement(0.0, 0.0, False)
        told = self.told if before else self.saves
        return Tried(
            remedy=self.offer.remedy, place=str(self.offer.site), says=self.offer.says, code=self.offer.code,
            taken=self.taken, why=self.why, predicted_gain_s=None if told is None else told * wall,
            gain_s=wall - statistics.median(after) if after else None, cost_s=promise.cost_s,
            cost_bytes=promise.cost_bytes, error_before=agreement.before, error_after=agreement.after,
            against=agreement.against, changes=self.offer.changes, advice=self.offer.advice, how=promise.how,
        )  # fmt: skip


def expected(gain: float, noise: float, wall: float) -> str:
    """Why an offer is not tried."""
    if gain <= wall * (1 - MOST_SHARE):
        return f"with it the program is predicted to take {MOST_SHARE:.0f} times as long, or more"
    if gain < -noise:
        return f"it is predicted to lose {ms(-gain)}, with noise of {ms(noise)}"
    return f"it is predicted to {'lose' if gain < 0 else 'bring'} {ms(abs(gain))}, within the noise of {ms(noise)}"
