"""The search over optimizations. Each candidate is predicted. The best is put in place, verified, measured in
alternation with the program as it is by then, and applied or rejected. Afterwards every module is as it was.

Candidates are predicted in groups (``order``): first all that takes a few runs of the program, then one compiler after
another. The search is greedy: in the order of predicted gain for each second that the trial takes, each candidate is
measured on top of what was applied before it, and all of a group is measured before the next is predicted.
If it was predicted with something else in place, it is predicted anew first. If a candidate touches what an applied one
touches too, it is tried in that one's place first, then on top of it; what was displaced may come back on top. If only
one of two can be in place and both are predicted to save about as much, they are benchmarked in turns. A candidate is
rejected if its gain is not significant or its outputs are worse. Nothing begins that does not fit the rest of the
budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelworks.diagnose import optimizations as every_optimization
from kernelworks.diagnose.fix.alternate import (
    LEAST_NOISE,
    LEAST_RUNS,
    alternate,
    gain_of,
    gain_text,
    noise_between,
    noise_of,
    range_of,
)
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.calibrate import calibrate
from kernelworks.diagnose.fix.compiled_check import check_compiled
from kernelworks.diagnose.fix.duels import duel, is_awaited, is_close_rival, is_raced
from kernelworks.diagnose.fix.forms_of_tries import FormsOfTries
from kernelworks.diagnose.fix.guarded_trial import RUNS, LeftBehind, guard_trial
from kernelworks.diagnose.fix.journal import Journal, ProcessSpoilt, State
from kernelworks.diagnose.fix.order import (
    SETTINGS,
    groups_of_tries,
    in_order,
    stage,
    trial_s,
    tries_above,
    tries_beneath,
)
from kernelworks.diagnose.fix.outcome import fix_record, in_a_line, note_step, place, with_budget
from kernelworks.diagnose.fix.output_check import check_outputs
from kernelworks.diagnose.fix.plan import candidates_of
from kernelworks.diagnose.fix.predict import UNFORESEEN, is_worth_a_try, predict_group
from kernelworks.diagnose.fix.program_roots import find_program_roots
from kernelworks.diagnose.fix.result import MORE, make_record, remember, so_far
from kernelworks.diagnose.fix.resume import resume
from kernelworks.diagnose.fix.time_limits import (
    FREE_RUNS,
    TRIAL_RUNS,
    part_s,
    seconds_to_end,
    time_is_left,
    verification_s,
)
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.optimization import (
    Candidate,
    CombinedChange,
    Impossible,
    Optimization,
    Promise,
    Scene,
)
from kernelworks.measure.clock.noise import SampledWindows, far_apart
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.profile.budget import Budget, BudgetExceeded
from kernelworks.profile.program import Program
from kernelworks.records import history
from kernelworks.records.fix import NOT_TRIED, CompilerReport, Fix, SearchStep, TriedOptimization

__all__ = ["Search"]

Say = Callable[[str], None]
NOTHING = "no optimization makes this program faster here"
LONGER = 4  # times as many turns, if the first do not show whether the gain is significant


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
    optimizations: Sequence[Optimization] = field(default_factory=lambda: every_optimization.OPTIMIZATIONS)
    plan: Mapping[str, Any] | None = None
    journal: Journal = field(default_factory=Journal)
    resumed: State | None = None  # what another process noted: the search goes on from there
    spent_s: float = 0.0  # of the budget, before this process
    doing: str = "starting"
    tried: list[Try] = field(default_factory=list)
    kept: list[Try] = field(default_factory=list)
    impossible: list[TriedOptimization] = field(default_factory=list)
    over: list[Try] = field(default_factory=list)  # what did not fit the budget
    put_off: list[Try] = field(default_factory=list)  # whose parts wait for a rival that may hold them all
    reports: list[CompilerReport] = field(default_factory=list)  # files that show where a compiler was wrong
    last: Try | None = None  # that was applied: verified and measured with all that is
    steps: list[SearchStep] = field(default_factory=list)
    left_behind: LeftBehind | None = None  # by trials, in this process

    def __post_init__(self) -> None:
        self.forms = FormsOfTries(self)

    def fix(self) -> Fix:
        """Everything that ``--fix`` does. Afterwards every module is as it was. Raises only what ends a process: any
        other error is the reason why a candidate is rejected or not tried, or why the whole fix is refused."""
        try:
            self._searched()
            return make_record(self)
        except BudgetExceeded as over:
            self.kept, wall = [], statistics.median(self.walls)
            return fix_record(
                wall, wall, ended=f"the budget was too small: {over}", against="", budget_s=self.budget_s,
                needs_s=over.needs_s or MORE * self.budget_s, noise_s=noise_of(self.walls),
            )  # fmt: skip
        except ProcessSpoilt as why:
            return so_far(self, f"the search ended early: {why}")
        except Exception as error:  # the program's, changed or run once too often, or ours: the diagnosis stands
            refused = f"the search failed: {self.doing}: {in_a_line(error)}"
        finally:
            if self.left_behind is not None:
                self.left_behind.close()
        self.kept = []
        wall, note = statistics.median(self.walls), "every module is as it was, and the rest of the diagnosis holds"
        return fix_record(wall, wall, notes=(note,), agrees=False, refused=refused)

    def step(self, what: str) -> None:
        self.doing = what
        self.steps = note_step(self.steps, what, getattr(self, "scene", None))
        self.say(with_budget(what, getattr(self, "scene", None)))

    @contextlib.contextmanager
    def within(self, seconds: float, cause: str = "") -> Iterator[None]:
        """A step that is ended with its process if it takes longer, where the search has a process of its own.
        ``cause``: what is wrong then, if it is not just the budget."""
        self.journal.note_limit(seconds, cause)
        try:
            yield
        finally:
            self.journal.note_limit(0.0)

    def _searched(self) -> None:
        free_runs = 0 if self.spent_s else FREE_RUNS
        budget = Budget(self.budget_s, statistics.median(self.walls), free_runs=free_runs)
        budget.begun -= self.spent_s
        program = dataclasses.replace(self.program, run=budget.count_runs(self.program.run))
        self.step("finding the modules that the program calls")
        roots = find_program_roots(program, budget, getattr(self.forecaster, "timeline", None), self.step)
        scene = self.scene = Scene(
            roots, self.forecaster.with_sync(program), forecaster=self.forecaster, walls=self.walls, budget=budget,
            allow=frozenset(self.allow), say=self.step, within=self.within, optimizers=roots.optimizers,
        )  # fmt: skip
        self.place = place(scene.device)
        self.left_behind = LeftBehind(program.run)
        self.outcomes = history.read_outcomes(self.place)
        if self.plan is not None:
            self._planned(self.plan)
            return
        if self.resumed is None:
            self._list_candidates()
        else:
            resume(self, self.resumed)
        pending = [one for one in self.tried if one.promise is None and not (one.why or one.rejected)]
        waiting = [one for one in self.tried if one.saves is not None and not one.why and one.found is None]
        later: list[Try] = []
        while waiting or later or pending or (waiting := self._again()):
            one = self._next_ready(waiting)
            if one is None:
                if not later:  # what was compiled by now tells how long the others take
                    later = self._following(pending)
                    pending = [each for each in pending if each not in later]
                if later:
                    waiting, later = predict_group(self, later, waiting)
                else:
                    self.forms.wait([*waiting, *pending])
                continue
            waiting.remove(one)
            beside = self.tries_beside(one)
            if one.saves is None or set(one.upon) == set(beside):
                waiting += [*self._considered(one), *self.lesser_tries(one)]
            elif is_worth_a_try(self, one, beside):  # anew, of the program as it is by now: it waits for its turn again
                waiting.append(one)
            else:
                waiting += self.lesser_tries(one)
            if later and one.found is not None:
                waiting, later = predict_group(self, later, waiting)

    def _next_ready(self, waiting: list[Try]) -> Try | None:
        """The best of these, by what it saves for each second of its trial, but for what is being compiled for it."""
        waiting.sort(key=lambda one: -self._left(one) / self.trial_s(one))
        self.forms.ask(waiting)
        return next((one for one in waiting if not self.forms.is_pending(one)), None)

    def _following(self, pending: Sequence[Try]) -> list[Try]:
        """What is predicted next of these; nothing if all of it is being compiled."""
        self.forms.refresh(pending)
        groups = groups_of_tries(self.scene, pending, self.kept, tried=self.tried, isolated=self.journal.isolated)
        return self.forms.following(groups)

    def trial_s(self, one: Try) -> float:
        """Seconds to verify and measure it at the least, and to make anew what is kept on top of it."""
        return trial_s(self.scene) + self.forms.remake_s(one, self.kept)

    def _list_candidates(self) -> None:
        for optimization in self.optimizations:
            try:
                self.tried += [Try(optimization, candidate) for candidate in optimization.candidates(self.scene)]
            except Impossible as why:
                self._leave_out(optimization, str(why))
            except BudgetExceeded:
                raise
            except Exception as error:  # one that cannot look at this program costs no other its turn
                self._leave_out(optimization, f"looking for its places: {in_a_line(error)}")

    def _leave_out(self, optimization: Optimization, why: str) -> None:
        self.impossible.append(TriedOptimization(optimization.name, "", "", "", NOT_TRIED, why))

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
        self.step("the first run with the plan in place")
        with together:
            self.scene.program.run()
        whole.why = ""
        self._judged(whole, together, [])
        if whole.applied:
            self.kept = list(self.tried)
        for one in self.tried:
            one.applied, one.rejected = whole.applied, whole.rejected

    # ------------------------------------------------------------ one candidate

    @contextlib.contextmanager
    def with_beneath(self, one: Try, upon: Sequence[Try]) -> Iterator[None]:
        """The scene as it is when this one is put in place: with what comes before it, and not what comes after."""
        scene, found = self.scene, tries_beneath(one, upon)
        taken, names = list(scene.taken), scene.beneath
        scene.taken[:] = [other.change for other in found if other.change is not None]
        scene.beneath = tuple(str(other.candidate) for other in found if SETTINGS < stage(other) < stage(one))
        try:
            yield
        finally:
            scene.taken[:], scene.beneath = taken, names

    def _again(self) -> list[Try]:
        """What was predicted to save nothing by itself, and may on top of what is applied by now: a layout whose
        conversions cost more than it saves, until a compiler converts only once. And what was put off for a rival."""
        late = [
            one
            for one in self.tried
            if one.candidate.again and one.saves is not None and one.found is None and set(one.upon) != set(self.kept)
        ]
        put_off, self.put_off = self.put_off, []
        return [
            *(one for one in late if self._on_top(one)),
            *(less for one in put_off for less in self.lesser_tries(one)),
        ]

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

    def tries_beside(self, one: Try) -> list[Try]:
        """What stays in place with it."""
        rivals = self._rivals(one)
        return [other for other in self.kept if other not in rivals]

    def lesser_tries(self, one: Try) -> list[Try]:
        """What is worth a try instead of a rejected one, if nothing else has its place: a part of what it does."""
        less = one.promise.less if one.promise is not None else None
        if one.applied or less is None or self._rivals(one):
            return []
        if is_awaited(one, self.tried):
            self.put_off.append(one)
            return []
        assert one.promise is not None
        one.promise, found = dataclasses.replace(one.promise, less=None), list[Candidate]()
        why, rejected = one.why, one.rejected
        self.guard_trial(one, lambda: found.extend(less()))
        one.why, one.rejected = why, rejected
        tries = [Try(one.optimization, candidate) for candidate in found]
        self.tried += tries
        return [each for each in tries if is_worth_a_try(self, each, self.tries_beside(each))]

    def _left(self, one: Try) -> float:
        """What it is predicted to save of the program as it is by now, in the place of its rivals; 0 if nothing was
        predicted."""
        if one.saves is None:
            return 0.0
        left = 1 - one.saves
        for other in self._rivals(one):
            left /= max(1e-3, 1 - other.saved_in_all)
        return 1 - left

    def _considered(self, one: Try) -> list[Try]:
        """Tries it. Returns what is to be tried again because of it."""
        rivals, one.why = self._rivals(one), ""
        near = [rival for rival in rivals if is_close_rival(one, rival)]
        raced = next((rival for rival in near if is_raced(one, rival)), None)
        if raced is not None:
            self.guard_trial(one, lambda: self._race_against(one, raced))
        told = raced is not None or not near  # else the program itself tells
        if not one.why and told and rivals and one.saves is not None and self._left(one) <= LEAST_NOISE:
            rival = raced or rivals[0]
            said = "saves as much in a direct benchmark" if raced is not None else "is predicted to save as much"
            one.why = f"{rival.candidate.optimization}, {rival.candidate.says}, is in its place and {said}"
            one.rejected = one.rejected or raced is not None
        elif not one.why:
            self.guard_trial(one, lambda: self._measured(one))
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
        self.step(f"benchmarking in turns: {one.candidate.says}, and {rival.candidate.says} in its place")
        left = 1 - duel(self.scene, one, rivals, self.tries_beside(one))
        for other in rivals:
            left *= 1 - other.saved_in_all
        one.predicted = 1 - left
        one.promise = dataclasses.replace(
            one.promise, saves=1 - left, how=f"benchmarked in turns with {rival.candidate.says}"
        )

    def _on_top(self, one: Try) -> bool:
        """Whether it is worth a try beside what is applied by now. If that must be made anew on top of it, only a
        measurement of the whole can tell."""
        why, found = one.why, one.found
        remade = tries_above(one, self.kept)
        if remade and one.saves is not None:
            cost_s = sum(other.promise.cost_s for other in remade if other.promise is not None)
            one.promise, one.why, one.upon = Promise(None, cost_s, how="measured as a whole"), "", tuple(self.kept)
            return True
        if is_worth_a_try(self, one, self.kept):
            return True
        one.why, one.found = (f"{why}; on top of that: {one.why}" if why else one.why), found
        return False

    def guard_trial(self, one: Try, act: Callable[[], None]) -> None:
        """What goes wrong is the reason why the candidate is rejected or not tried."""
        guard_trial(self, one, act)

    def _measured(self, one: Try) -> None:
        """Puts it in place where it belongs, and makes anew what comes on top of it."""
        rest, budget = self.tries_beside(one), self.scene.budget
        remade = tries_above(one, rest)
        assert budget is not None
        needs_s = self.forms.remake_s(one, rest)
        budget.ask("verifying and measuring it", needs_s + TRIAL_RUNS * self.scene.wall)
        before = [(other, other.change) for other in remade]
        try:
            for other in (one, *remade):
                with self.with_beneath(other, [*rest, one]):
                    other.change = other.optimization.apply(self.scene, other.candidate)
            changed = CombinedChange(o.change for o in in_order([*rest, one]) if o.change is not None)
            calibrate(self, one, changed, rest)
            self._judged(one, changed, rest)
            self.forms.note_compiled([one, *remade], [*rest, one])
        finally:
            if not one.applied:
                for other, change in before:
                    other.change = change

    def _judged(self, one: Try, together: CombinedChange, rest: list[Try]) -> None:
        """Verifies and measures the program with ``together`` in place, and applies that if its gain is significant."""
        scene, candidate = self.scene, one.candidate
        rivals = [other for other in self.kept if other not in rest]
        self.step(f"comparing the outputs: {candidate.optimization}, {candidate.says}")
        with untimed_section():
            check_outputs(scene, one, together, self.kept, verification_s(scene))
        if one.why:
            one.rejected = True
            return
        self.step(f"measuring: {candidate.optimization}, {candidate.says}")
        one.told = self._left(one) if one.saves is not None else None
        one.displaced = math.prod(1 - other.saved_in_all for other in rivals)
        one.found = found = self.in_turns(scene.in_place(), together)
        before, _ = one.pairs
        unclear = LEAST_NOISE * statistics.median(before) < abs(gain_of(one.turns)) <= noise_between(one.turns)
        if unclear and time_is_left(scene, LEAST_RUNS):
            one.found = found = self.in_turns(scene.in_place(), together, times=LONGER)
            before, _ = one.pairs
        if far_apart(before):
            one.told = None
            self.note(f"{range_of(before)}{UNFORESEEN}")
        gain, noise = gain_of(one.turns), noise_between(one.turns)
        theirs = found.loud and candidate.cores  # what other processes leave of the cores decides it, not the program
        gained, beside = gain > noise and not theirs, rest if self.plan is None else self.tried
        with untimed_section():
            wrong, report = check_compiled(scene, one, together, beside) if gained else ("", None)
        assert self.left_behind is not None
        wrong = self.left_behind.put_back(runs=time_is_left(scene, RUNS)) or wrong
        self.reports += [report] if report is not None else []
        one.applied = gained and not wrong
        one.rejected = not one.applied
        if one.applied:
            one.remaining = (self.last.remaining if self.last is not None else 1.0) * (1 - one.saved_share)
            self.kept, self.last = in_order([*rest, one]), one
            scene.taken[:] = together.changes
        said = str(found.noise) if found.loud else gain_text(gain, noise, statistics.median(before))
        one.why = wrong or said
        remember(self, one, rivals, noise)

    def in_turns(
        self, before: CombinedChange, after: CombinedChange, *, times: int = 1, rounds: int = 0
    ) -> SampledWindows[tuple[float, float]]:
        scene, most = self.scene, rounds or times * self.forecaster.most_rounds
        assert scene.program is not None
        limits = part_s(scene), seconds_to_end(scene)
        return alternate(scene.program, before, after, scene.wall, limits, self.say_turn, most=most)

    def say_turn(self, which: str) -> None:
        self.say(with_budget(which, self.scene))

    def note(self, text: str) -> None:
        said = self.scene.notes
        if text not in said and not (text.endswith(UNFORESEEN) and any(note.endswith(UNFORESEEN) for note in said)):
            self.scene.notes.insert(0, text)
