"""The search over optimizations. Each candidate is predicted. The best is put in place, verified, measured in
alternation with the program as it is by then, and applied or rejected. Afterwards every module is as it was.

The search is greedy: in the order of predicted gain, each candidate is measured on top of what was applied before it.
If it was predicted with something else in place, it is predicted anew first. If a candidate touches what an applied one
touches too, it is tried in that one's place first, then on top of it; what was displaced may come back on top. If only
one of two can be in place and both are predicted to save about as much, they are benchmarked in turns. A candidate is
rejected if its gain is not significant or its outputs are worse. Nothing begins that does not fit the rest of the
budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelworks.diagnose.fix.alternate import (
    LEAST_NOISE,
    alternate,
    gain_of,
    gain_text,
    noise_between,
    noise_of,
    range_of,
)
from kernelworks.diagnose.fix.attempt import MOST_SHARE, Try, reason_not_tried
from kernelworks.diagnose.fix.calibrate import CALIBRATION_ROUNDS, calibrate_promise, holds_here
from kernelworks.diagnose.fix.duels import duel, is_close_rival
from kernelworks.diagnose.fix.outcome import fix_record, in_a_line, place
from kernelworks.diagnose.fix.output_check import check_outputs
from kernelworks.diagnose.fix.patch import as_patch
from kernelworks.diagnose.fix.plan import as_plan, candidates_of
from kernelworks.diagnose.fix.watchdog import Stopping
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.optimization import (
    Candidate,
    CombinedChange,
    Impossible,
    Optimization,
    Promise,
    Rejected,
    Scene,
)
from kernelworks.diagnose.optimizations import OPTIMIZATIONS
from kernelworks.diagnose.sites.functions import count_outside_calls, find_functions
from kernelworks.diagnose.sites.modules import Roots, find_roots
from kernelworks.measure.clock.noise import SampledWindows, far_apart
from kernelworks.profile.budget import Budget, BudgetExceeded
from kernelworks.profile.program import Program
from kernelworks.records import history
from kernelworks.records.fix import NOT_TRIED, Fix, TriedOptimization

__all__ = ["Search"]

Say = Callable[[str], None]
NOTHING = "no optimization makes this program faster here"
PART = 0.0625  # of the budget, for one verification or one measurement
OUTSIDE = 0.1  # of the program's time: with more outside of modules its functions are looked at
LONGER = 4  # times as many turns, if the first do not show whether the gain is significant
RESERVED_SHARE = 0.5  # of the rest of the budget, to try what is predicted to save time
FIRST, SOON_S = 0.1, 10.0  # after so long, what is predicted to save so much is tried before more is predicted
RETRY_FACTOR = 1.25  # times the seconds of the first attempt, for a prediction that did not end
UNFORESEEN = ", so nothing is predicted"


@dataclass
class Search:
    """One program's search. ``scene.taken`` holds the changes applied by now, ``kept`` the tries they came from.

    The time of the changed program is predicted before it is ever measured, as a share of the program's time in the
    same minute. What would take longer than the budget, beside the program's own runs, is not begun or not ended.
    ``walls`` are plain runs of the original. With a ``plan`` nothing is searched: all of it is put in place at once.
    """

    program: Program
    walls: Sequence[float]
    forecaster: Forecaster
    budget_s: float
    say: Say
    allow: Iterable[str] = ()
    optimizations: Sequence[Optimization] = OPTIMIZATIONS
    plan: Mapping[str, Any] | None = None
    doing: str = "starting"
    tried: list[Try] = field(default_factory=list)
    kept: list[Try] = field(default_factory=list)
    impossible: list[TriedOptimization] = field(default_factory=list)
    over: list[Try] = field(default_factory=list)  # what did not fit the budget
    last: Try | None = None  # that was applied: verified and measured with all that is

    def fix(self) -> Fix:
        """Everything that ``--fix`` does. Afterwards every module is as it was. Raises only what ends a process: any
        other error is the reason why a candidate is rejected or not tried, or why the whole fix is refused."""
        try:
            self._searched()
            return self._make_record()
        except BudgetExceeded as over:
            refused = f"the budget was too small: {over}"
        except Exception as error:  # the program's, changed or run once too often, or ours: the diagnosis stands
            refused = f"the search failed: {self.doing}: {in_a_line(error)}"
        self.kept = []
        wall, note = statistics.median(self.walls), "every module is as it was, and the rest of the diagnosis holds"
        return fix_record(wall, wall, notes=(note,), agrees=False, refused=refused)

    def _step(self, what: str) -> None:
        self.doing = what
        self.say(what)

    def _searched(self) -> None:
        budget = Budget(self.budget_s, statistics.median(self.walls))
        program = dataclasses.replace(self.program, run=budget.count_runs(self.program.run))
        self._step("finding the modules that the program calls")
        roots = self._roots(program, budget)
        scene = self.scene = Scene(
            roots, self.forecaster.with_sync(program), forecaster=self.forecaster, walls=self.walls, budget=budget,
            allow=frozenset(self.allow), say=self._step, optimizers=roots.optimizers,
        )  # fmt: skip
        self.place = place(scene.device)
        self.outcomes = history.read_outcomes(self.place)
        if self.plan is not None:
            self._planned(self.plan)
            return
        for optimization in self.optimizations:
            try:
                self.tried += [Try(optimization, candidate) for candidate in optimization.candidates(scene)]
            except Impossible as why:
                self.impossible.append(TriedOptimization(optimization.name, "", "", "", NOT_TRIED, str(why)))
        waiting, later = self._asked(tuple(self.tried), [])
        while waiting or later or (waiting := self._again()):
            if not waiting:
                waiting, later = self._asked(later, [])
                continue
            waiting.sort(key=lambda one: -self._left(one))
            one = waiting.pop(0)
            beside = self._beside(one)
            if one.saves is None or set(one.upon) == set(beside):
                waiting += [*self._considered(one), *self._less(one)]
            elif self._predicted(one, beside):  # anew, of the program as it is by now: it waits for its turn again
                waiting.append(one)
            else:
                waiting += self._less(one)
            if later and one.found is not None:
                waiting, later = self._asked(later, waiting)

    def _asked(self, tries: Iterable[Try], waiting: Sequence[Try]) -> tuple[list[Try], list[Try]]:
        """Predicts these. Returns what waits to be tried, and what is to be predicted after the best was tried. As long
        as something waits, predictions (which may compile) leave half of the budget to it, and the first that promises
        much does not wait for them."""
        budget, found, later = self.scene.budget, list(waiting), list[Try]()
        assert budget is not None
        for one in tries:
            soon = time.perf_counter() - budget.begun > SOON_S and not any(other.found for other in self.tried)
            if soon and any((other.saves or 0.0) >= FIRST for other in found):
                later.append(one)
                continue
            hopeful = any((other.saves or 0) > LEAST_NOISE for other in found)
            reserved = RESERVED_SHARE * max(budget.seconds_left, 0.0) if hopeful else 0.0
            seconds_left = budget.seconds_left - reserved
            if one.allotted_s and seconds_left < RETRY_FACTOR * one.allotted_s:  # it would not end this time either
                (later if reserved else self.over).append(one)
                continue
            with budget.reserve(reserved):
                worth = self._predicted(one, self._beside(one))
            if worth:
                found.append(one)
            elif reserved and one in self.over:
                self.over.remove(one)
                one.allotted_s = max(seconds_left, 1e-9)
                later.append(one)
        return found + [less for one in tries if one not in (*found, *later) for less in self._less(one)], later

    def _roots(self, program: Program, budget: Budget) -> Roots:
        roots = find_roots(program.run, budget)
        if roots.fresh or sum(roots.seconds.values()) > (1 - OUTSIDE) * budget.wall:
            return roots
        self._step("finding the functions that the program calls")
        functions = find_functions(program, count_outside_calls(getattr(self.forecaster, "timeline", None)))
        return find_roots(program.run, budget, functions) if functions else roots

    def _planned(self, plan: Mapping[str, Any]) -> None:
        """All of a plan, measured as one."""
        found = candidates_of(plan, self.optimizations)
        self.tried = [Try(optimization, candidate) for optimization, candidate in found]
        if not found:
            return
        changes = [optimization.apply(self.scene, candidate) for optimization, candidate in found]
        for one, change in zip(self.tried, changes, strict=True):
            one.change, one.why = change, "the plan holds it"
        # The whole is verified as the one that may change numbers is.
        whole = next((one for one in self.tried if one.candidate.changes), self.tried[-1])
        saves = plan.get("saves")
        whole.promise = Promise(saves, how="as the plan was measured") if isinstance(saves, float) else None
        together = CombinedChange(changes)
        assert self.scene.program is not None and self.scene.budget is not None
        self._step("the first run with the plan in place")
        with Stopping(self.scene.budget, self.doing), together:
            self.scene.program.run()
        whole.why = ""
        self._judged(whole, together, [])
        if whole.applied:
            self.kept = list(self.tried)
        for one in self.tried:
            one.applied, one.rejected = whole.applied, whole.rejected

    # ------------------------------------------------------------ one candidate

    def _predicted(self, one: Try, upon: Sequence[Try]) -> bool:
        """Whether it is worth a try in a program with just those in place."""
        one.why = ""
        if one.candidate.advice:
            one.why = "advice: only the program's author can do it"
        elif one.candidate.changes and one.candidate.changes not in self.scene.allow:
            one.why = f"it changes numbers: allow {one.candidate.changes} to have it tried"
        elif one.candidate.cores and getattr(getattr(self.forecaster, "timeline", None), "loud", False):
            one.why = (
                "ambiguous: other processes use the machine, and the best number of cores depends on what they leave"
            )
        else:
            self._guarded(one, lambda: self._promised(one, upon))
        return not one.why

    def _promised(self, one: Try, upon: Sequence[Try]) -> None:
        self._step(f"predicting its gain: {one.candidate.optimization}, {one.candidate.says}")
        taken = list(self.scene.taken)
        self.scene.taken[:] = [other.change for other in upon if other.change is not None]
        try:
            found = one.optimization.predict(self.scene, one.candidate)
        finally:
            self.scene.taken[:] = taken
        if found.saves is not None:
            found = dataclasses.replace(found, saves=max(found.saves, 1 - MOST_SHARE))
        one.promise, one.predicted, one.upon = found, found.saves, tuple(upon)
        if found.saves is None:
            return
        if far_apart(self.walls):
            one.promise = dataclasses.replace(found, saves=None)
            self._note(f"{range_of(self.walls)}{UNFORESEEN}")
            return
        if found.saves > 0:
            factor = history.calibration(one.candidate.optimization, self.outcomes)
            one.promise = dataclasses.replace(found, saves=min(found.saves * factor, 0.5 + found.saves / 2))
        if (
            found.saves <= LEAST_NOISE
        ):  # noisier runs do not matter here: turns decide then, and noise affects both states
            wall = self.scene.wall
            one.why = reason_not_tried(found.saves * wall, LEAST_NOISE * wall, wall)

    def _again(self) -> list[Try]:
        """What was predicted to save nothing by itself, and may on top of what is applied by now: a layout whose
        conversions cost more than it saves, until a compiler converts only once."""
        late = [
            one
            for one in self.tried
            if one.candidate.again and one.saves is not None and one.found is None and set(one.upon) != set(self.kept)
        ]
        return [one for one in late if self._predicted(one, self.kept)]

    def _rivals(self, one: Try) -> list[Try]:
        """What was applied and cannot stay, or may save less, if this one is in place."""
        return [
            other
            for other in self.kept
            if other not in one.upon
            and (
                (one.candidate.group and one.candidate.group == other.candidate.group)
                or one.candidate.touches & other.candidate.touches
            )
        ]

    def _beside(self, one: Try) -> list[Try]:
        """What stays in place with it."""
        rivals = self._rivals(one)
        return [other for other in self.kept if other not in rivals]

    def _less(self, one: Try) -> list[Try]:
        """What is worth a try instead of a rejected one, if nothing else has its place: a part of what it does."""
        less = one.promise.less if one.promise is not None else None
        if one.applied or less is None or self._rivals(one):
            return []
        assert one.promise is not None
        one.promise, found = dataclasses.replace(one.promise, less=None), list[Candidate]()
        why, rejected = one.why, one.rejected
        self._guarded(one, lambda: found.extend(less()))
        one.why, one.rejected = why, rejected
        tries = [Try(one.optimization, candidate) for candidate in found]
        self.tried += tries
        return [each for each in tries if self._predicted(each, self._beside(each))]

    def _left(self, one: Try) -> float:
        """What it is predicted to save of the program as it is by now, in the place of its rivals; 0 if nothing was
        predicted."""
        if one.saves is None:
            return 0.0
        left = 1 - one.saves
        for other in self._rivals(one):
            left /= max(1e-3, 1 - other.saved_share)
        return 1 - left

    def _considered(self, one: Try) -> list[Try]:
        """Tries it. Returns what is to be tried again because of it."""
        rivals, one.why = self._rivals(one), ""
        near = next((rival for rival in rivals if is_close_rival(one, rival)), None)
        if near is not None:
            self._guarded(one, lambda: self._race_against(one, near))
        if not one.why and rivals and one.saves is not None and self._left(one) <= LEAST_NOISE:
            rival = near or rivals[0]
            said = "saves as much in a direct benchmark" if near is not None else "is predicted to save as much"
            one.why = f"{rival.candidate.optimization}, {rival.candidate.says}, is in its place and {said}"
            one.rejected = one.rejected or near is not None
        elif not one.why:
            self._guarded(one, lambda: self._measured(one))
        again: list[Try] = []
        if one.applied:
            for other in rivals:
                other.applied, other.rejected = False, True
                other.why = f"{one.candidate.optimization}, {one.candidate.says}, saves more in its place"
                again += [other] if other.candidate.group != one.candidate.group or not one.candidate.group else []
        elif rivals and all(
            not one.candidate.group or other.candidate.group != one.candidate.group for other in rivals
        ):
            again = [one]
        return [other for other in again if len(other.upon) < len(self.kept) and self._on_top(other)]

    def _race_against(self, one: Try, rival: Try) -> None:
        """Predicts it anew if it is about as good as what is in its place: in turns with that."""
        assert self.scene.budget is not None and one.promise is not None
        rivals = self._rivals(one)
        self.scene.budget.ask("benchmarking two optimizations of one place")
        self._step(f"benchmarking in turns: {one.candidate.says}, and {rival.candidate.says} in its place")
        left = 1 - duel(self.scene, one, rivals, self._beside(one))
        for other in rivals:
            left *= 1 - other.saved_share
        one.predicted = 1 - left
        one.promise = dataclasses.replace(
            one.promise, saves=1 - left, how=f"benchmarked in turns with {rival.candidate.says}"
        )

    def _on_top(self, one: Try) -> bool:
        """Whether it is worth a try on top of what is applied by now."""
        why, found = one.why, one.found
        if self._predicted(one, self.kept):
            return True
        one.why, one.found = (f"{why}; on top of that: {one.why}" if why else one.why), found
        return False

    def _guarded(self, one: Try, act: Callable[[], None]) -> None:
        """What goes wrong is the reason why the candidate is rejected or not tried."""
        assert self.scene.budget is not None
        try:
            with Stopping(self.scene.budget, f"{one.candidate.optimization}, {one.candidate.says}"):
                act()
        except BudgetExceeded as over:
            one.why = f"the budget was too small: {over}"
            self.over.append(one)
        except Impossible as why:
            one.why, one.promise = str(why), why.instead or one.promise
            one.rejected = one.rejected or isinstance(why, Rejected)
        except Exception as error:
            one.why, one.rejected = f"{self.doing}: {in_a_line(error)}", True

    def _measured(self, one: Try) -> None:
        assert self.scene.budget is not None
        self.scene.budget.ask("verifying and measuring it")
        rest = self._beside(one)
        one.change = one.optimization.apply(self.scene, one.candidate)
        changed = CombinedChange((*(other.change for other in rest if other.change is not None), one.change))
        if one.promise is not None and one.saves is not None and not holds_here(one, self.outcomes):
            self._step(f"calibrating its prediction: {one.candidate.optimization}, {one.candidate.says}")
            turns = self._in_turns(self.scene.in_place(), changed, rounds=CALIBRATION_ROUNDS).samples
            rivals = [other.saved_share for other in self.kept if other not in rest]
            one.promise = calibrate_promise(one.promise, turns, rivals)
        self._judged(one, changed, rest)

    def _judged(self, one: Try, together: CombinedChange, rest: list[Try]) -> None:
        """Verifies and measures the program with ``together`` in place, and applies that if its gain is significant."""
        scene, candidate = self.scene, one.candidate
        rivals = [other for other in self.kept if other not in rest]
        self._step(f"comparing the outputs: {candidate.optimization}, {candidate.says}")
        check_outputs(scene, one, together, self.kept, PART * self.budget_s)
        if one.why:
            one.rejected = True
            return
        self._step(f"measuring: {candidate.optimization}, {candidate.says}")
        one.told = self._left(one) if one.saves is not None else None
        one.found = found = self._in_turns(scene.in_place(), together)
        before, _ = one.pairs
        if LEAST_NOISE * statistics.median(before) < abs(gain_of(one.turns)) <= noise_between(one.turns):
            one.found = found = self._in_turns(scene.in_place(), together, times=LONGER)
            before, _ = one.pairs
        if far_apart(before):
            one.told = None
            self._note(f"{range_of(before)}{UNFORESEEN}")
        gain, noise = gain_of(one.turns), noise_between(one.turns)
        theirs = found.loud and candidate.cores  # what other processes leave of the cores decides it, not the program
        one.applied = gain > noise and not theirs
        one.rejected = not one.applied
        if one.applied:
            self.kept, self.last = [*rest, one], one
            scene.taken[:] = together.changes
        one.why = f"ambiguous: {found.noise}" if found.loud else gain_text(gain, noise, statistics.median(before))
        self._remember(one, rivals, noise)

    def _in_turns(
        self, before: CombinedChange, after: CombinedChange, *, times: int = 1, rounds: int = 0
    ) -> SampledWindows[tuple[float, float]]:
        scene, most = self.scene, rounds or times * self.forecaster.most_rounds
        assert scene.program is not None
        return alternate(scene.program, before, after, scene.wall, PART * self.budget_s, self._step, most=most)

    def _remember(self, one: Try, rivals: Sequence[Try], noise: float) -> None:
        """Adds it to the history, if both prediction and measurement are sound."""
        if one.predicted is None or one.told is None or one.found is None or one.found.loud:
            return
        before, after = (statistics.median(walls) for walls in one.pairs)
        predicted = 1 - (1 - one.predicted) * (1 - one.told) / (1 - (one.saves or 0.0)) if rivals else one.predicted
        with contextlib.suppress(OSError, ValueError):
            history.append_outcome(
                history.Outcome(
                    self.place, self.program.name, one.candidate.optimization, str(one.candidate.site),
                    one.candidate.says, before, predicted * before, one.told * before, before - after, noise,
                    one.applied,
                    torch=str(torch.__version__),
                )
            )  # fmt: skip

    def _note(self, text: str) -> None:
        said = self.scene.notes
        if text not in said and not (text.endswith(UNFORESEEN) and any(note.endswith(UNFORESEEN) for note in said)):
            self.scene.notes.insert(0, text)

    # ------------------------------------------------------------ the record

    def _make_record(self) -> Fix:
        wall = self.scene.wall
        measured = [one for one in self.tried if one.found is not None]
        notes = [*self.scene.notes]
        if self.scene.roots.alike and measured:
            notes.append(f"{self.scene.roots.alike} modules were not compared: others of their kind were")
        gained = self._gained(notes) if self.kept else None
        ended = gained.ambiguous if gained is not None else ""
        if gained is not None and self.plan is None and gained.gain_s <= gained.noise_s:
            for one in self.kept:
                one.applied, one.rejected = False, True
                one.why = "with all that was applied, the gain of the whole is not significant"
            self.kept, self.scene.taken[:], gained = [], [], None
        changes = [one.change for one in self.kept if one.change is not None]
        candidates = [one.candidate for one in self.kept]
        said = tuple(one.record(wall) for one in self.tried) + tuple(self.impossible)
        shared: dict[str, Any] = {
            "optimizations": said,
            "replaced": tuple(line for change in changes for line in change.done),
            "left": tuple(line for change in changes for line in change.left),
            "code": "\n".join(candidate.code for candidate in candidates if candidate.code),
        }
        if gained is not None:
            saves = gained.gain_s / gained.before_s
            plan = as_plan(candidates, self.scene.roots, program=self.program.name, kind=self.place, saves=saves)
            entry = self.program.entry.fn if self.program.entry is not None else None
            patch = as_patch(candidates, self.scene, self.program.file, entry)
            return dataclasses.replace(gained, plan=plan, patch=patch, **shared)
        why = "" if said else ": there is no candidate"  # else each candidate says why
        ambiguous = ended or next((str(one.found.noise) for one in measured if one.found and one.found.loud), "")
        allowed = {
            one for one in self.tried if not one.candidate.advice and one.candidate.changes in {"", *self.scene.allow}
        }
        refused = self.over[0].why if self.over and set(self.over) == allowed else ""
        return fix_record(
            wall, wall, notes=(f"{NOTHING}{why}", *notes), refused=refused, agrees=not refused,
            ambiguous=ambiguous, noise_s=noise_of(self.walls), **shared,
        )  # fmt: skip

    def _gained(self, notes: list[str]) -> Fix:
        """What everything that was applied saved, measured as one."""
        last = self.last
        assert last is not None and last.agreement is not None and last.found is not None
        found = last.found
        if (
            len([one for one in self.tried if one.found and one.saved_share > 0]) > 1
        ):  # each on top of what was applied before it
            self._step("measuring the best program found beside the program as it was")
            found = self._in_turns(CombinedChange(()), self.scene.in_place())
        before, after = ([pair[variant] for pair in found.samples] for variant in (0, 1))
        was, now = statistics.median(before), statistics.median(after)
        left: float | None = 1.0
        for one in self.kept if self.plan is None else [last]:
            left = None if left is None or one.saves is None else left * (1 - one.saves)
        return fix_record(
            was, now, predicted_gain_s=None if left is None or far_apart(before) else was * (1 - left),
            error_before=last.agreement.before, error_after=last.agreement.after, agrees=True, rounds=len(before),
            notes=tuple(note for note in (last.agreement.note, *notes) if note),
            noise_s=noise_between(found.samples), ambiguous=str(found.noise) if found.loud else "",
            against=last.agreement.against,
        )  # fmt: skip
