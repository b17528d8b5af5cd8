"""The predictions of a search: of a group of candidates before any of it is tried, and of one on top of what is applied
by now."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kernelworks.diagnose.fix.alternate import LEAST_NOISE, range_of
from kernelworks.diagnose.fix.attempt import Try, reason_not_tried, reason_without_leave
from kernelworks.measure.clock.noise import far_apart
from kernelworks.records import history

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["UNFORESEEN", "is_worth_a_try", "predict_group"]

RESERVED_SHARE = 0.5  # of the rest of the budget, to try what is predicted to save time
FIRST = 0.1  # of the wall clock: what is predicted to save so much is tried before more is predicted,
SOON_S, SOON_SHARE = 10.0, 0.25  # after so long, and after such a share of the budget
RETRY_FACTOR = 1.25  # times the seconds of the first attempt, for a prediction that did not end
UNFORESEEN = ", so nothing is predicted"


def predict_group(search: Search, tries: Iterable[Try], waiting: Sequence[Try]) -> tuple[list[Try], list[Try]]:
    """Predicts these. Returns what waits to be tried, and what is to be predicted after the best was tried. As long as
    something waits, predictions (which may compile) leave half of the budget to it, and the first that promises much
    does not wait for them."""
    budget, found, later = search.scene.budget, list(waiting), list[Try]()
    assert budget is not None
    soon_s = min(SOON_S, SOON_SHARE * budget.seconds)
    for one in tries:
        soon = time.perf_counter() - budget.begun > soon_s and not any(other.found for other in search.tried)
        if soon and any((other.saves or 0.0) >= FIRST for other in found):
            later.append(one)
            continue
        hopeful = any((other.saves or 0) > LEAST_NOISE for other in found)
        reserved = RESERVED_SHARE * max(budget.seconds_left, 0.0) if hopeful else 0.0
        own_s = search.trial_s(one)  # what cannot be measured any more is not compiled either
        seconds_left = budget.seconds_left - reserved
        if one.allotted_s and seconds_left < RETRY_FACTOR * one.allotted_s:  # it would not end this time either
            (later if reserved else search.over).append(one)
            continue
        with budget.reserve(max(reserved, own_s)):
            worth = is_worth_a_try(search, one, search.tries_beside(one))
        if worth:
            found.append(one)
        elif reserved and one in search.over:
            search.over.remove(one)
            one.allotted_s = max(seconds_left, 1e-9)
            later.append(one)
    return found + [less for one in tries if one not in (*found, *later) for less in search.lesser_tries(one)], later


def is_worth_a_try(search: Search, one: Try, upon: Sequence[Try]) -> bool:
    """Whether it is worth a try in a program with just those in place."""
    one.why = reason_without_leave(one.candidate, search.scene.allow)
    if one.why:
        return False
    if one.candidate.cores and getattr(getattr(search.forecaster, "timeline", None), "loud", False):
        one.why = "ambiguous: other processes use the machine, and the best number of cores depends on what they leave"
    else:
        search.guard_trial(one, lambda: _promised(search, one, upon))
    return not one.why


def _promised(search: Search, one: Try, upon: Sequence[Try]) -> None:
    scene = search.scene
    search.step(f"predicting its gain: {one.candidate.optimization}, {one.candidate.says}")
    assert scene.budget is not None
    scene.budget.ask("predicting its gain")
    scene.compiled = search.forms.compiled_form(one, upon)
    try:
        with search.with_beneath(one, upon):
            found = one.optimization.predict(scene, one.candidate)
    finally:
        scene.compiled = None
    search.forms.note_compiled([one], upon, verified=False)
    found = one.note_promise(found, upon)
    if found.saves is None:
        return
    if far_apart(search.walls):
        one.promise = dataclasses.replace(found, saves=None)
        search.note(f"{range_of(search.walls)}{UNFORESEEN}")
        return
    if found.saves > 0:
        factor = history.calibration(one.candidate.optimization, search.outcomes)
        one.promise = dataclasses.replace(found, saves=min(found.saves * factor, 0.5 + found.saves / 2))
    if found.saves <= LEAST_NOISE:  # noisier runs do not matter here: turns decide, and noise affects both states
        one.why = reason_not_tried(found.saves * scene.wall, LEAST_NOISE * scene.wall, scene.wall)
