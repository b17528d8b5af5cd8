"""How true the predictions of fixes were on this machine: what each optimization was said to bring beside what it
brought.

Reads the local history alone (``history``): every optimization that was measured left a line there. A prediction is as
the user was told it; what it was before calibration is judged beside it, so that calibration has to earn its place.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelworks.records import history
from kernelworks.records.base import Record
from kernelworks.records.history import Outcome, calibration

__all__ = ["OptimizationAccuracy", "PredictionAccuracy", "prediction_accuracy"]

MAX_DRAWN_OUTCOMES = 500  # outcomes that are drawn


@dataclass(frozen=True)
class OptimizationAccuracy:
    """What became of one optimization's predictions on one kind of machine. Errors are the middle distance between
    predicted and got, as a share of the wall clock of the program."""

    kind: str
    optimization: str
    outcomes: int
    held: int  # within a fifth of the gain, or both within a fiftieth of the wall clock
    taken: int  # of them, how often the optimization stayed
    got: float | None  # for one second predicted, in the middle; None where no prediction was of any size
    raw_error: float
    error: float  # of what was told, after calibration
    factor: float  # by which the next prediction is multiplied


@dataclass(frozen=True)
class PredictionAccuracy(Record):
    file: str
    kept: tuple[OptimizationAccuracy, ...]
    outcomes: tuple[Outcome, ...]  # the last ones, oldest first
    loud_count: int = 0  # outcomes that do not count: others used the machine while they were measured

    @property
    def accurate_count(self) -> int:
        return sum(one.held for one in self.kept)

    @property
    def outcome_count(self) -> int:
        return sum(one.outcomes for one in self.kept)


def _accuracy_of(kind: str, optimization: str, outcomes: Sequence[Outcome]) -> OptimizationAccuracy:
    ratios = [
        one.gain_s / one.predicted_s for one in outcomes if abs(one.predicted_s) > history.NOISE_SHARE * one.wall_s
    ]
    return OptimizationAccuracy(
        kind,
        optimization,
        len(outcomes),
        sum(one.is_accurate for one in outcomes),
        sum(one.taken for one in outcomes),
        statistics.median(ratios) if ratios else None,
        statistics.median(abs(one.predicted_s - one.gain_s) / one.wall_s for one in outcomes),
        statistics.median(abs(one.told_s - one.gain_s) / one.wall_s for one in outcomes),
        calibration(optimization, outcomes),
    )


def prediction_accuracy(kind: str = "", optimization: str = "") -> PredictionAccuracy:
    """The history of this machine's cache, by kind of machine and optimization.

    Args:
        kind: only machines whose kind holds this text.
        optimization: only this optimization.
    """
    every = [
        one
        for one in history.read_outcomes(loud=True)
        if kind in one.kind and optimization in ("", one.optimization) and one.wall_s > 0
    ]  # fmt: skip
    found = [one for one in every if not one.loud]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        groups.setdefault((one.kind, one.optimization), []).append(one)
    kept = sorted(
        (_accuracy_of(*key, outcomes) for key, outcomes in groups.items()), key=lambda k: (k.kind, -k.outcomes)
    )
    return PredictionAccuracy(
        str(history.path()), tuple(kept), tuple(found[-MAX_DRAWN_OUTCOMES:]), len(every) - len(found)
    )
