"""Diagnoses and fixes a program in a worker process, so that nothing a trial does can lose the diagnosis.

A trial may end the process that it runs in, hang it, lose its device or outgrow the memory. That costs this one trial,
which is rejected with the cause. The next worker builds the program anew, puts in place what was kept, and goes on. A
compiler that is still at work when its time is over is ended with its process; no exception is raised inside it.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import pickle
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kernelworks.diagnose import DiagnosisInterrupt
from kernelworks.diagnose.fix.compile_pool import CompilePool, compilers_at_once
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.plan_check import NO_TIME, PLAN_RUNS, PLAN_STEP, PlanRun, checked_plan, run_plan
from kernelworks.diagnose.fix.result import MORE, NOT_OVER, OVER
from kernelworks.diagnose.fix.time_limits import ENDING_S, FREE_RUNS, SPARE_S
from kernelworks.diagnose.fix.worker_limit import Silence, WorkerLimit
from kernelworks.diagnose.fix.worker_process import LEAVE_S, Messages, cause_of_end, worker_process
from kernelworks.diagnose.record import with_fix
from kernelworks.profile.program_errors import TEXT
from kernelworks.records import Diagnosis, GpuPeaks, Peaks
from kernelworks.records.fix import NOT_TRIED, REJECTED, Fix, SearchStep
from kernelworks.records.json_text import build_record
from kernelworks.report.terminal import Notice

__all__ = ["ProcessEnded", "Request", "supervise"]

Say = Callable[[str], None]
MODULE = "kernelworks.diagnose.fix.worker"
MOST_DEATHS = 8  # then the search ends with what it has
LASTS = "the diagnosis took {:.0f} s; the fix has a budget of {:.0f} s, and ends within {:.0f} s from now"
INTERRUPTED_CAUSE = "it was interrupted"
UPON_LOST = "it was measured on top of what cannot be put in place anew"
AGAIN_S, RUNS_AGAIN = 5.0, 4  # seconds and runs of observing in a later worker: the first one's diagnosis stands


class ProcessEnded(RuntimeError):
    """The program ended its process before anything was tried on it."""


@dataclass(frozen=True)
class Request:
    """What is diagnosed, and what may be tried on it."""

    target: str
    args: Sequence[str]
    module: bool
    peaks: Peaks | GpuPeaks | None
    budget_s: float
    fix_s: float
    allow: Sequence[str]
    plan: Mapping[str, Any] | None
    counters: Sequence[str]
    rough: bool


@dataclass
class Progress:
    """What is known by now: the diagnosis, the tries, and the fix as far as it got."""

    diagnosis: Diagnosis | None = None
    state: dict[str, Any] | None = None
    fix: Fix | None = None
    begun: float = field(default_factory=lambda: time.monotonic())
    started_s: float = 0.0  # that a worker takes until it is first heard of
    observed_at: float = 0.0  # when the search began
    trial_at_s: float = 0.0  # when the try under way began, since then
    budget_s: float = 0.0
    ends_at: float = float("inf")  # when the fix has to end
    deaths: list[str] = field(default_factory=list)
    fixes: list[tuple[frozenset[int], Fix]] = field(default_factory=list)  # the last one with each set of kept tries
    suspect: int | None = None  # the number of what was taken out last, as the plan could not be run
    is_over: bool = False  # the last worker ended as its time was over
    pool: CompilePool | None = None

    @property
    def seconds_left(self) -> float:
        """Until the fix has to end."""
        return self.ends_at - time.monotonic()

    def searched_s(self) -> float:
        """Seconds since the search began; 0 before."""
        return time.monotonic() - self.observed_at if self.observed_at else 0.0

    @property
    def another_takes_s(self) -> float:
        """Seconds of another worker, until it goes on with the search."""
        wall = self.diagnosis.wall_s if self.diagnosis is not None else 0.0
        return self.started_s + AGAIN_S + RUNS_AGAIN * wall

    def note_observed(self, diagnosis: Diagnosis, budget_s: float) -> None:
        if self.diagnosis is None:
            self.diagnosis, self.observed_at, self.budget_s = diagnosis, time.monotonic(), budget_s
            self.ends_at = self.observed_at + budget_s + SPARE_S + FREE_RUNS * diagnosis.wall_s

    def with_seconds(self, found: Diagnosis) -> Diagnosis:
        """With the time that it took, before the search and in it."""
        if found.fix is None:
            return found
        began = self.observed_at or time.monotonic()
        fix = dataclasses.replace(found.fix, diagnosis_s=began - self.begun, search_s=time.monotonic() - began)
        if self.pool is not None:
            steps = sorted((*self._own_steps(fix), *self.pool.steps), key=lambda step: step.at_s)
            notes = (*fix.notes, *filter(None, [self.pool.note()]))
            fix = dataclasses.replace(fix, steps=tuple(steps), notes=notes, compilers_beside=self.pool.number_at_once)
        return dataclasses.replace(found, fix=fix)

    def _own_steps(self, fix: Fix) -> Sequence[SearchStep]:
        """The search's, also those of a worker that has ended since its last outcome."""
        noted = self.state["steps"] if self.state is not None else ()
        return fix.steps if len(fix.steps) >= len(noted) else [build_record(SearchStep, step) for step in noted]

    def running(self) -> dict[str, Any] | None:
        """The try that was under way, if one was."""
        number = None if self.state is None else self.state["running"]
        if self.state is None or number is None:
            return None
        found: dict[str, Any] = self.state["tries"][number]
        return found

    def note_outcome(self, state: dict[str, Any], fix: Fix) -> None:
        self.state, self.fix = state, fix
        kept = frozenset(state["kept"])
        self.fixes = [*(each for each in self.fixes if each[0] != kept), (kept, fix)]

    def blame(self, cause: str, needs_s: float = 0.0) -> None:
        """The try that was under way is rejected, and so is out of the plan; if only the budget was over, it was not
        tried, and so many seconds may do. One that was kept and is put in place anew stays kept then, and the search is
        over."""
        self.deaths.append(cause)
        one = self.running()
        if one is None or self.state is None:
            return
        number, candidate = self.state["running"], one["candidate"]
        was_kept = number in self.state["kept"]
        if was_kept and needs_s:
            self.is_over = True
            return
        ended = SearchStep(self.trial_at_s, f"did not end: {candidate['optimization']}, {candidate['says']}")
        self.state["steps"] = [*self.state["steps"], dataclasses.asdict(ended)]
        one.update(
            why=cause, rejected=not needs_s, applied=False, promise=None, parts=False, samples=None, noise=None,
            needs_s=needs_s,
        )  # fmt: skip
        self.state.update(kept=[n for n in self.state["kept"] if n != number], running=None)
        if self.fix is not None and number < len(self.fix.optimizations):
            tried = list(self.fix.optimizations)
            outcome = NOT_TRIED if needs_s else REJECTED
            tried[number] = dataclasses.replace(tried[number], outcome=outcome, why=cause, needs_s=needs_s)
            most_s = max(self.fix.needs_s, needs_s)
            self.fix = dataclasses.replace(self.fix, optimizations=tuple(tried), needs_s=most_s)
            if was_kept:
                self.fix = self._without_lost(self.fix, frozenset(self.state["kept"]))

    def without_last(self, fix: Fix, why: str) -> Fix:
        """The fix as it was before what was applied last, which is rejected. What was so before is not to blame: it was
        measured on top of this one."""
        assert self.state is not None
        kept = [number for number in self.state["kept"] if fix.optimizations[number].applied]
        last, tried = kept.pop(), list(fix.optimizations)
        if self.suspect is not None:
            tried[self.suspect] = dataclasses.replace(tried[self.suspect], outcome=NOT_TRIED, why=UPON_LOST)
        tried[last] = dataclasses.replace(tried[last], outcome=REJECTED, why=why)
        self.state["kept"], self.suspect = kept, last
        before = self._without_lost(dataclasses.replace(fix, optimizations=tuple(tried)), frozenset(kept))
        return dataclasses.replace(before, ended=fix.ended)

    def _without_lost(self, fix: Fix, kept: frozenset[int]) -> Fix:
        """The last fix of which nothing is lost. What was measured on top of what cannot be put in place anew was not
        measured without it."""
        nothing = frozenset[int](), fix_record(fix.before_s, fix.before_s, budget_s=fix.budget_s)
        held, found = next((each for each in reversed(self.fixes) if each[0] <= kept), nothing)
        tried = tuple(
            dataclasses.replace(one, outcome=NOT_TRIED, why=UPON_LOST) if one.applied and at not in held else one
            for at, one in enumerate(fix.optimizations)
        )
        return dataclasses.replace(found, optimizations=tried, needs_s=fix.needs_s, steps=fix.steps)


def supervise(request: Request, say: Say) -> Diagnosis:
    """The diagnosis with its fix.

    Raises what the program raises when it is first run, ProcessEnded if it ends its process then.
    """
    progress = Progress()
    try:
        return _supervised(request, progress, say)
    except KeyboardInterrupt:
        raise DiagnosisInterrupt(
            (), lambda: progress.diagnosis and _as_far_as_it_got(progress, INTERRUPTED_CAUSE)
        ) from None


def _supervised(request: Request, progress: Progress, say: Say) -> Diagnosis:
    pool = _pool(request, progress)
    progress.pool = pool
    with contextlib.closing(pool):
        pool.build()
        found = _with_workers(request, progress, say, pool)
        pool.close()  # what stands still holds memory, of a GPU too, that the plan's process may need
        if request.plan is None:
            found = _with_plan_check(found, request, progress, say)
        return progress.with_seconds(found)


def _with_plan_check(found: Diagnosis, request: Request, progress: Progress, say: Say) -> Diagnosis:
    """With what a process of its own says of the plan, in the time that is left."""
    program = {"target": request.target, "args": list(request.args), "module": request.module}
    steps: list[SearchStep] = []

    def run(plan: Mapping[str, Any]) -> PlanRun:
        seconds = progress.seconds_left
        if seconds < progress.started_s + PLAN_RUNS * found.wall_s:
            return PlanRun(why=NO_TIME, late=True)
        steps.append(SearchStep(round(progress.searched_s(), 2), PLAN_STEP))
        say(Notice(f"{PLAN_STEP}, {seconds:.0f} s left"))
        return run_plan(program, plan, seconds)

    if found.fix is None:
        return found
    fix = checked_plan(found.fix, run, progress.without_last)
    return with_fix(found, dataclasses.replace(fix, steps=(*fix.steps, *steps))) if fix is not found.fix else found


def _pool(request: Request, progress: Progress) -> CompilePool:
    """The compilers beside: none if a plan is measured, which is compiled whole."""
    program = {"target": request.target, "args": list(request.args), "module": request.module}
    number = compilers_at_once() if request.plan is None else 0
    return CompilePool(program, number, progress.searched_s)


def _with_workers(request: Request, progress: Progress, say: Say, pool: CompilePool) -> Diagnosis:
    while True:
        done = _one_worker(request, progress, say, pool)
        pool.worker_ended()
        if done is not None:
            if _knows_less(done, progress):
                progress.is_over = True
                done = _as_far_as_it_got(progress, OVER)
            return done
        cause = progress.deaths[-1]
        if progress.diagnosis is None:
            raise ProcessEnded(f"there is no diagnosis, as the program's own run ends its process: {cause}")
        time_for_another = progress.seconds_left - SPARE_S > progress.another_takes_s
        ended = progress.is_over or len(progress.deaths) > MOST_DEATHS
        if progress.state is not None and not time_for_another:
            progress.is_over = True  # what ended this one cost it its trial; it is time that ends the search
        if progress.state is None or ended or not time_for_another:
            return _as_far_as_it_got(progress, cause)
        say(f"{cause}; going on in another process")


def _knows_less(done: Diagnosis, progress: Progress) -> bool:
    """Whether a later worker ended before it had taken up what an earlier one found: its budget was over."""
    return done.fix is not None and progress.fix is not None and (
        len(done.fix.optimizations) < len(progress.fix.optimizations)
    )  # fmt: skip


def _as_far_as_it_got(progress: Progress, cause: str) -> Diagnosis:
    assert progress.diagnosis is not None
    fix = progress.fix
    if fix is None:
        wall = progress.diagnosis.wall_s
        needs_s = MORE * progress.budget_s if progress.is_over else 0.0
        fix = fix_record(wall, wall, budget_s=progress.budget_s, needs_s=needs_s)
    if progress.is_over:
        fix = dataclasses.replace(fix, ended=OVER)
    elif cause == INTERRUPTED_CAUSE:
        fix = _interrupted(fix)
    elif fix.rounds:
        fix = dataclasses.replace(fix, ended=cause)
    else:
        said = f"the search ended before anything was applied: {cause}"
        fix = dataclasses.replace(fix, refused=said, ended=cause, agrees=False)
    return with_fix(progress.diagnosis, fix)


def _interrupted(fix: Fix) -> Fix:
    """A fix that its user ended: nothing was found wrong, and no budget was too small."""
    left = tuple(
        dataclasses.replace(one, why=INTERRUPTED_CAUSE, needs_s=0.0)
        if one.outcome == NOT_TRIED and one.why == NOT_OVER
        else one
        for one in fix.optimizations
    )
    needs_s = max((one.needs_s for one in left), default=0.0)
    return dataclasses.replace(
        fix, refused="", ended=INTERRUPTED_CAUSE, agrees=True, needs_s=needs_s, optimizations=left
    )


def _one_worker(request: Request, progress: Progress, say: Say, pool: CompilePool) -> Diagnosis | None:
    """What one worker finds; None if it has ended before its time, of which ``progress`` has the cause then."""
    begun, silent = time.monotonic(), True
    with _worker(request, progress) as (process, messages):
        limit = WorkerLimit(process.pid, lambda: pool.is_at_work)
        pool.tell = messages.send

        def is_over() -> bool:
            pool.look(limit.rested_s)
            return limit.is_reached(progress.ends_at)

        for message in messages.until(over=is_over, ended=lambda: process.poll() is not None):
            kind = message["kind"]
            pool.hears(message)
            if silent:
                silent, progress.started_s = False, time.monotonic() - begun
            if kind == "say":
                limit.progress()
                say(Notice(message["text"]) if message["notice"] else message["text"])
            elif kind == "observed":
                progress.note_observed(build_record(Diagnosis, message["diagnosis"]), request.fix_s)
                if progress.state is None:
                    took_s, ends_s = progress.observed_at - progress.begun, progress.seconds_left + ENDING_S
                    say(Notice(LASTS.format(took_s, request.fix_s, ends_s)))
            elif kind == "begin":
                progress.state, progress.trial_at_s = message["state"], round(progress.searched_s(), 2)
                limit.begin(Silence(**message["silence"]))
            elif kind == "within":
                limit.within(message["seconds"], message["cause"])
            elif kind == "spoilt":
                limit.cause = message["why"]
            elif kind == "end":
                progress.note_outcome(message["state"], build_record(Fix, message["fix"]))
                limit.end()
            elif kind == "raised":
                if progress.diagnosis is None:
                    _raise(message)
                progress.blame(f"it raised {message['named']}: {message['line']}")
                return None
            elif kind == "done":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, min(LEAVE_S, progress.seconds_left)))
                return build_record(Diagnosis, message["diagnosis"])
        if not limit.cause:
            limit.cause = cause_of_end(process)
        progress.is_over = limit.is_budget
        progress.blame(limit.cause, MORE * request.fix_s if limit.is_budget or limit.is_part else 0.0)
    return None


def _worker(request: Request, progress: Progress) -> AbstractContextManager[tuple[subprocess.Popen[bytes], Messages]]:
    return worker_process(MODULE, _as_sent(request, progress), progress.seconds_left)


def _as_sent(request: Request, progress: Progress) -> dict[str, Any]:
    fields = {each.name: getattr(request, each.name) for each in dataclasses.fields(request)}
    peaks = request.peaks
    fields["peaks"] = peaks and {"gpu": isinstance(peaks, GpuPeaks), "record": dataclasses.asdict(peaks)}
    fields["resumed"], fields["search_began"] = progress.state, None
    fields["compilers"] = progress.pool.number if progress.pool is not None else 0
    if progress.state is not None and progress.diagnosis is not None:
        known = progress.diagnosis.peaks
        fields["peaks"] = {"gpu": isinstance(known, GpuPeaks), "record": dataclasses.asdict(known)}
        fields |= {"search_began": progress.observed_at, "budget_s": min(request.budget_s, AGAIN_S)}
    return fields


def _raise(message: Mapping[str, Any]) -> NoReturn:
    """What the worker raised, with the text of its traceback."""
    error: BaseException = RuntimeError(": ".join(filter(None, (message["named"], message["line"]))))
    if message["pickled"]:
        with contextlib.suppress(Exception):  # a class of the program's own, whose module only the worker has loaded
            error = pickle.loads(base64.b64decode(message["pickled"]))  # from our own process
    setattr(error, TEXT, message["text"])
    raise error
