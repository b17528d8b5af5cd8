"""What came of a search, as a record; and what later searches may learn of it."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernelworks.diagnose.fix.alternate import LEAST_RUNS, noise_between, noise_of
from kernelworks.diagnose.fix.attempt import Try, reason_without_leave
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.patch import as_patch, patch_folder
from kernelworks.diagnose.fix.plan import as_plan
from kernelworks.diagnose.fix.time_limits import seconds_to_end
from kernelworks.diagnose.optimization import CombinedChange
from kernelworks.measure.clock.noise import far_apart
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.records import history
from kernelworks.records.fix import NOT_TRIED, Fix, TriedOptimization

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["MORE", "NOT_OVER", "OVER", "make_record", "remember", "so_far"]

NOT_OVER = "the budget was over before it"
OVER = "the budget was over"
MORE = 2  # times the budget, which may do if it was over before the search
NOTHING = "no optimization makes this program faster here"
UNFORESEEABLE = "runs lay too far apart for a prediction"


def make_record(search: Search) -> Fix:
    """The record of a search that came to its end: all that was applied is measured as one."""
    wall = search.scene.wall
    measured = [one for one in search.tried if one.found is not None]
    notes = [*search.scene.notes]
    if search.scene.roots.alike and measured:
        notes.append(f"{search.scene.roots.alike} modules were not compared: others of their kind were")
    if search.kept and not _fits(search):
        return so_far(search, OVER)
    try:
        gained = _gained(search, notes) if search.kept else None
    except BudgetExceeded:
        return so_far(search, OVER)
    loud = gained.ambiguous if gained is not None else ""
    if gained is not None and search.plan is None and gained.gain_s <= gained.noise_s:
        for one in search.kept:
            one.applied, one.rejected = False, True
            one.why = "with all that was applied, the gain of the whole is not significant"
        search.kept, search.scene.taken[:], gained = [], [], None
    if gained is not None:
        return _with_plan(search, gained)
    why = "" if search.tried or search.impossible else ": there is no candidate"  # else each candidate says why
    ambiguous = loud or next((str(one.found.noise) for one in measured if one.found and one.found.loud), "")
    allowed = {
        one for one in search.tried if not one.candidate.advice and one.candidate.changes in {"", *search.scene.allow}
    }
    ended = search.over[0].why if search.over and set(search.over) == allowed else OVER if search.over else ""
    return fix_record(
        wall, wall, notes=tuple(notes) if ended else (f"{NOTHING}{why}", *notes), ended=ended, ambiguous=ambiguous,
        noise_s=noise_of(search.walls), **_account(search),
    )  # fmt: skip


def so_far(search: Search, ended: str = OVER) -> Fix:
    """The record as it would be if the search ended here, without another run of the program. ``ended`` says why; if
    that is not the budget and nothing was applied, the fix is refused."""
    wall, last = search.scene.wall, search.last
    outcomes = tuple(_untried(one, search, ended) for one in _outcomes(search))
    needs_s = max((one.needs_s for one in outcomes), default=0.0)
    if not search.kept or last is None or last.found is None or last.agreement is None:
        return fix_record(
            wall, wall, notes=tuple(search.scene.notes), ended=ended, noise_s=noise_of(search.walls),
            refused="" if ended == OVER else ended, agrees=ended == OVER,
            **_account(search) | {"optimizations": outcomes, "needs_s": needs_s},
        )  # fmt: skip
    now = statistics.median(last.pairs[1])
    was = now / last.remaining  # each was measured in turns with what it changed: another minute's runs say less
    found = fix_record(
        was, now, **_prediction(search.kept, was),
        error_before=last.agreement.before, error_after=last.agreement.after, agrees=True, rounds=len(last.turns),
        notes=("what was applied was measured one by one, not as a whole", *search.scene.notes), ended=ended,
        noise_s=noise_between(last.turns), against=last.agreement.against,
    )  # fmt: skip
    return dataclasses.replace(_with_plan(search, found), optimizations=outcomes, needs_s=needs_s)


def _untried(one: TriedOptimization, search: Search, ended: str) -> TriedOptimization:
    """What had no turn by then, with the reason: one that no budget would have tried says so."""
    if one.why or one.outcome != NOT_TRIED:
        return one
    without_leave = reason_without_leave(one, search.scene.allow)
    if without_leave:
        return dataclasses.replace(one, why=without_leave)
    return dataclasses.replace(one, why=NOT_OVER if ended == OVER else ended, needs_s=MORE * search.budget_s)


def _fits(search: Search) -> bool:
    """Whether the time that a fix may take lasts for measuring all that was applied as one, if it was not."""
    return not _is_sum(search) or seconds_to_end(search.scene) > LEAST_RUNS * search.scene.wall


def _is_sum(search: Search) -> bool:
    """Whether what was applied is more than what was measured last: each on top of what was applied before it."""
    return len([one for one in search.tried if one.found and one.saved_share > 0]) > 1


def _outcomes(search: Search) -> tuple[TriedOptimization, ...]:
    return tuple(one.record(search.scene.wall) for one in search.tried) + tuple(search.impossible)


def _account(search: Search) -> dict[str, Any]:
    """What was allowed, what came of each candidate, and which budget would have done."""
    return {
        "optimizations": _outcomes(search), "allowed": tuple(sorted(search.scene.allow)), "budget_s": search.budget_s,
        "needs_s": max((one.needs_s for one in search.tried), default=0.0), "compiler_reports": tuple(search.reports),
        "steps": tuple(search.steps),
    }  # fmt: skip


def _with_plan(search: Search, gained: Fix) -> Fix:
    """With what another process, or the program's author, puts in place."""
    changes = [one.change for one in search.kept if one.change is not None]
    candidates = [one.candidate for one in search.kept]
    saves = gained.gain_s / gained.before_s
    plan = as_plan(candidates, search.scene.roots, program=search.program.name, kind=search.place, saves=saves)
    entry = search.program.entry.fn if search.program.entry is not None else None
    return dataclasses.replace(
        gained,
        **_account(search),
        replaced=tuple(line for change in changes for line in change.done),
        left=tuple(line for change in changes for line in change.left),
        code="\n".join(candidate.code for candidate in candidates if candidate.code),
        plan=plan,
        patch=search.scene.keep(  # who holds the model is looked for among all objects: seconds, after each trial
            ("patch", repr(candidates)), lambda: as_patch(candidates, search.scene, search.program.file, entry)
        ),
        patch_folder=patch_folder(search.program.file),
    )


def _gained(search: Search, notes: list[str]) -> Fix:
    """What everything that was applied saved, measured as one."""
    last = search.last
    assert last is not None and last.agreement is not None and last.found is not None
    found = last.found
    if _is_sum(search):
        search.step("measuring the best program found beside the program as it was")
        found = search.in_turns(CombinedChange(()), search.scene.in_place())
    before, after = ([pair[variant] for pair in found.samples] for variant in (0, 1))
    was, now = statistics.median(before), statistics.median(after)
    return fix_record(
        was, now,
        **_prediction(search.kept if search.plan is None else [last], was, UNFORESEEABLE if far_apart(before) else ""),
        error_before=last.agreement.before, error_after=last.agreement.after, agrees=True, rounds=len(before),
        notes=tuple(note for note in (last.agreement.note, *notes) if note), ended=OVER if search.over else "",
        noise_s=noise_between(found.samples), ambiguous=str(found.noise) if found.loud else "",
        against=last.agreement.against,
    )  # fmt: skip


def _prediction(applied: Sequence[Try], was: float, unknown: str = "") -> dict[str, Any]:
    """The gain predicted of a program of ``was`` seconds, and why it is not told. An optimization whose prediction this
    machine did not bear out counts as it was estimated before."""
    left = 1.0
    for one in applied:
        saves = one.predicted if one.saves is None else one.saves
        left *= 1 - (saves or 0.0)
        if one.saves is None:
            unknown = unknown or f"{one.candidate.optimization}: {one.promise.how if one.promise else 'not predicted'}"
    return {"predicted_gain_s": was * (1 - left), "unknown_prediction": unknown}


def remember(search: Search, one: Try, rivals: Sequence[Try], noise: float) -> None:
    """Adds it to the history, if there was a prediction; whether the measurement was disturbed is noted."""
    if one.predicted is None or one.told is None or one.found is None:
        return
    before, after = (statistics.median(walls) for walls in one.pairs)
    predicted = 1 - (1 - one.predicted) * (1 - one.told) / (1 - (one.saves or 0.0)) if rivals else one.predicted
    with contextlib.suppress(OSError, ValueError):
        history.append_outcome(
            history.Outcome(
                search.place, search.program.name, one.candidate.optimization, str(one.candidate.site),
                one.candidate.says, before, predicted * before, one.told * before, before - after, noise,
                one.applied,
                torch=str(torch.__version__), loud=one.found.loud,
            )
        )  # fmt: skip
