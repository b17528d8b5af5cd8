"""Holds a prediction against the program itself before it is told.

A prediction is made of parts that were timed by themselves: modules on their inputs, steps on copies, kernels one after
the other. How much of it the whole program gets hangs on the machine: on what page faults, caches and threads do
there. If predictions of an optimization have not held on this kind of machine by now, a few runs of the program with
the change in place, in turns with the program as it is, correct it. What these runs cannot tell from noise is not
told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelworks.diagnose.fix.alternate import gain_of, noise_between
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.optimization import CombinedChange, Promise
from kernelworks.records.history import Outcome

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["CALIBRATION_ROUNDS", "calibrate", "calibrated_promise", "holds_here"]

CALIBRATION_ROUNDS = 7  # of both states in turns, at the most: a long program has two
TELLING = 2.0  # times the noise: a smaller gain has no known size
ENOUGH, LAST, HELD = 4, 8, 0.75  # outcomes that say whether predictions hold: so many, of the last ones, this share


def calibrate(search: Search, one: Try, changed: CombinedChange, rest: Sequence[Try]) -> None:
    """Corrects the promise of one that is about to be measured, ``changed`` being the program with it, if predictions
    of its kind are not known to hold here."""
    if one.promise is None or one.saves is None or holds_here(one, search.outcomes):
        return
    search.step(f"calibrating its prediction: {one.candidate.optimization}, {one.candidate.says}")
    turns = search.in_turns(search.scene.in_place(), changed, rounds=CALIBRATION_ROUNDS).samples
    one.promise = calibrated_promise(one.promise, turns, [o.saved_in_all for o in search.kept if o not in rest])


def holds_here(one: Try, outcomes: Sequence[Outcome]) -> bool:
    """Whether the last predictions of an optimization on this kind of machine held, three in four of them at least."""
    last = [other.is_accurate for other in outcomes if other.optimization == one.candidate.optimization][-LAST:]
    return len(last) >= ENOUGH and sum(last) >= HELD * len(last)


def calibrated_promise(promise: Promise, turns: Sequence[tuple[float, float]], rivals: Sequence[float]) -> Promise:
    """The promise with what the program itself showed in these turns, which had the change in the place of ``rivals``,
    that save such shares; of unknown size if the turns lie too far apart."""
    before, gain = sorted(was for was, _ in turns)[len(turns) // 2], gain_of(turns)
    how = f"{promise.how}, then {len(turns)} turns of the program itself"
    if abs(gain) <= TELLING * noise_between(turns):
        return dataclasses.replace(promise, saves=None, how=f"{how}: unknown on this machine")
    left = 1 - gain / before
    for share in rivals:
        left *= 1 - share
    return dataclasses.replace(promise, saves=1 - left, how=how)
