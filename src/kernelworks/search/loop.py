"""The loop: whose turn it is proposes drafts, each is judged, what is right and quicker is gone on from.

All candidates of a problem are judged at one sitting, or one of each worker (``farm``): its reference, its processes
and its baseline are made once. While searching a judgement is short, and ends with the first reason against a
candidate; what looks best in the end is judged again at a sitting of its own, in full and on other inputs, and its
speed is said as it was then: the best of many measurements is a lucky one too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelworks.judge.formats import problem_on_device, read_problem, text
from kernelworks.judge.harness import Budget
from kernelworks.judge.problem import Problem
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.session import Sitting, Work
from kernelworks.machine import has_gpu, kind_of
from kernelworks.measure.peaks import get_peaks as measured_peaks
from kernelworks.records import GpuPeaks, Peaks, from_json, to_json
from kernelworks.records.judgement import BASELINES, Judgement
from kernelworks.records.search import BestCandidate, ProposerResult, Search, TriedCandidate
from kernelworks.search.bandit import Desk, turn
from kernelworks.search.keep import keep as keep_in_package
from kernelworks.search.keep import keepable
from kernelworks.search.our_kernels_cpp import modules, own_text_predicate, precompiled_files, texts_of
from kernelworks.search.proposer import Draft, Setting, StoredCandidate
from kernelworks.search.proposers import make_proposers
from kernelworks.search.stopping import Stopping, shorten_budget
from kernelworks.search.store import Store, place_of
from kernelworks.search.workers import cores
from kernelworks.search.workers.farm import Farm, InProcessWorker, Task, TaskResult, Worker, undecided_judgement

__all__ = ["FULL", "INITIAL_PROPOSER", "SHORT", "result", "search"]

INITIAL_PROPOSER = "given"  # the proposer of what a search begins with
BATCH = 4  # drafts that are asked for at once
MOST_REJUDGED = 3  # candidates that are judged again, where their intervals overlap
MOST_REFUSED = 50  # candidates among which one is looked for that is right both times
SHARE = 0.5  # of the budget, at most, that is kept back for judging again

SHORT = Budget(
    reference_s=10.0, most_cases=40, many=100, many_s=0.5, looks=1, shapes=1, required=2, sizes=2, gradients=0,
    all_reasons=False, turns_s=1.5, special=False,
)  # fmt: skip
FULL = Budget(reference_s=10.0, required=16, turns_s=10.0)

Say = Callable[..., None]


def _silent(what: str, done: float = 0, total: float = 0) -> None:
    pass


def search(
    problem: str | Path | Problem,
    *,
    device: str | None = None,
    parents: Sequence[str | Path] = (),
    proposers: Sequence[str] | None = None,
    budget_s: float = 600.0,
    most: int | None = None,
    store: str | Path | None = None,
    over: str = "eager",
    threads: int | None = None,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
    judging: tuple[Budget, Budget] = (SHORT, FULL),
    peaks: Peaks | GpuPeaks | None = None,
    workers: int = 1,
    keep: bool = False,
    progress: Say | None = None,
) -> Search:
    """Looks for a kernel that does what a problem asks, quicker than what there is. A search that was ended, however it
    was, goes on where it stopped.

    Args:
        problem: a file with a problem, or an op of ours (``"softmax"``, ``"softmax:1024x4096"``).
        device: "cpu" or "cuda", where candidates work; the problem's own without it.
        parents: files with candidates to begin with, in the problem's format.
        proposers: by name (``proposers.PROPOSERS``); without it all that can do something for this problem.
        budget_s: seconds of this run. A candidate that is being judged then is finished; the last judgement is shorter.
        most: candidates of the whole search, this run's and those before it.
        store: the SQLite file that it is kept in; without it one of the problem's own in the user's cache.
        over: the baseline: eager, compiled or ours. threads: of every variant; without it torch's own count, or an
            equal part of the cores of each worker.
        seed: of what proposers draw. options: of proposers, ``{"PROPOSER.NAME": value}``.
        judging: the budget of a judgement while searching, and of the last one.
        peaks: what this machine was measured to do; found or measured without it.
        workers: processes that judge beside each other, each on a core set (or a GPU) of its own. More than one need
            Ray.
        keep: put the best into its op package once it is verified (``keep``).
        progress: told what is done, ``(what, done, total)``.

    Returns:
        Every candidate with its verdict, and the best, judged twice.

    Raises: ValueError naming the argument, OSError for a file; both before anything is judged.
    """
    say = progress or _silent
    asked = problem_on_device(problem, device) if isinstance(problem, Problem) else read_problem(problem, device)
    if asked.device == "cuda" and not has_gpu():
        raise ValueError(f"{asked.name} is to be searched on a GPU, and torch sees none here")
    if over not in BASELINES:
        raise ValueError(f"over takes {', '.join(BASELINES)}, got {over!r}")
    if not budget_s > 0:
        raise ValueError(f"budget_s takes seconds above 0, got {budget_s!r}")
    if most is not None and most < 1:
        raise ValueError(f"most takes a whole number above 0, got {most!r}")
    if workers < 1:
        raise ValueError(f"workers takes a whole number above 0, got {workers!r}")
    count = threads or (torch.get_num_threads() if workers == 1 else max(1, len(cores.cores()) // workers))
    given = [_given(Path(path), asked) for path in parents] or _own(asked)
    place = Path(store) if store is not None else place_of(asked, over, count)
    setting = Setting(asked, over, count, seed, store=place)
    make_proposers(proposers, setting, options or {})  # a wrong name is said before anything is made
    if keep:
        keepable(asked)
    if workers > 1:
        from kernelworks.search.workers import crew

        crew.check_workers(workers, count)
    with Store.open(place, asked, over=over, threads=count, machine=kind_of(asked.device)) as kept:
        run = _Run(kept, judging, peaks, workers, say)
        with Stopping(budget_s, most, run.say) as stop, contextlib.ExitStack() as stack:
            run.stop, run.stack = stop, stack
            run.go(given, proposers, setting, options or {})
            found = result(kept, run=run)
        if keep and not stop.interrupted:
            in_package = keep_in_package(found, asked, budget=judging[0], peaks=run.peaks, say=run.say)
            found = dataclasses.replace(found, kept=in_package)
    return found


def _given(path: Path, problem: Problem) -> Draft:
    """A file's candidate as a draft. Raises Misread."""
    from kernelworks.judge.formats import read_candidate

    read = read_candidate(path, problem)
    return Draft(text.read_text(path), read.language, INITIAL_PROPOSER, note=path.name, detail={"file": path.name})


def _text(seen: StoredCandidate) -> tuple[str, str, str]:
    """Its name, text and language, as a judge takes them."""
    return f"candidate_{seen.number}", seen.draft.code, seen.draft.language


def _own(problem: Problem) -> list[Draft]:
    """Of an op of ours its kernels as they are."""
    return [
        Draft(found, text.language(found), INITIAL_PROPOSER, note="our kernel as it is") for found in texts_of(problem)
    ]


class _Run:
    """One run of a search."""

    def __init__(
        self, store: Store, judging: tuple[Budget, Budget], peaks: Peaks | GpuPeaks | None, workers: int,
        say: Say,
    ) -> None:  # fmt: skip
        self.store, self.judging, self.peaks, self._say = store, judging, peaks, say
        self.workers = workers
        self.interpreted = store.problem.device == "cpu"  # there Triton's kernels run in its interpreter
        self.stop: Stopping
        self.stack: contextlib.ExitStack
        self.farm: Farm
        self.work: Work | None = None
        self.nursery: Nursery | None = None
        self.worker = f"{platform.node()}:{os.getpid()}"
        self.desks: list[Desk] = []
        self.left: dict[str, str] = {}  # proposers that do nothing, and why
        self.judged_now, self.set_up_s, self.judging_s = 0, 0.0, 0.0
        self.stopped, self.why = "", ""
        self.wins = 0
        self.leader: TriedCandidate | None = None
        self.lost = 0
        self.silent: set[str] = set()  # proposers that wait for verdicts of what is being judged

    # ------------------------------------------------------------ what is told

    def say(self, what: str) -> None:
        """Where the search stands, and what is being done."""
        judged = self.store.count_judged()
        total = self.stop.most or 0
        lead, one = "", self.leader
        if one is not None and one.ratio is not None:
            lead = f", best {one.ratio:.2f}x over {self.store.over} ({one.proposer} #{one.number})"
        self._say(f"{judged} judged{lead}; {what}", judged if total else self.stop.seconds, total or self.stop.budget_s)

    # ------------------------------------------------------------ all of it

    def go(
        self, given: Sequence[Draft], names: Sequence[str] | None, setting: Setting, options: Mapping[str, str]
    ) -> None:
        self.store.add(given)
        self.leader = next(iter(self.store.quickest()), None)
        if not self._ended():
            with contextlib.ExitStack() as farmed:
                self.farm = farmed.enter_context(Farm(self._hirer(farmed), self._allowed, self._undecided, self.say))
                if self._sits():
                    self._proposers(names, setting, options)
                    self._judge_all(len(given))
                self.lost = self.farm.lost
        if self.stopped in ("budget", "count", "nothing left"):
            self._again()

    def _judge_all(self, given: int) -> None:
        """Keeps every worker at a candidate until the search ends, and takes what is judged then."""
        begin = time.monotonic()
        while True:
            more = not self._ended() and self._fill(given)
            if not self.farm.pending_ids:
                if self._ended():
                    break
                if not more:
                    self.stopped = "nothing left"
                    break
            for done in self.farm.wait():
                self._keep(done)
        self.judging_s = time.monotonic() - begin

    def _fill(self, given: int) -> bool:
        """Gives workers what they can take; False if nobody has more to propose now."""
        while (capacity := self.farm.free_slots()) > 0:
            flying = self.farm.pending_ids
            judged = self.store.count_judged()
            if self.stop.most is not None and judged + len(flying) >= self.stop.most:
                return True
            waiting = [seen for seen in self.store.pending(len(flying) + BATCH) if seen.id not in flying]
            if waiting:
                self.farm.give(self._task(*waiting))
                if self.workers == 1:
                    return True
            elif flying and judged < given:
                return True  # what was given is known before anything is made of it
            elif not self._ask(capacity, len(flying)):
                return False
        return True

    def _task(self, one: StoredCandidate, *later: StoredCandidate) -> Task:
        """To judge one. A worker that is the only one is told what it is given next."""
        left = BATCH if self.stop.most is None else self.stop.most - self.store.count_judged() - 1
        (name, code, language), *coming = (_text(seen) for seen in (one, *later[: max(0, left)]))
        said = f"{one.draft.proposer} #{one.number}"
        return Task(one.id, name, said, code, language, tuple(coming) if self.workers == 1 else ())

    def _ended(self) -> bool:
        if not self.stopped:
            self.stopped = self.stop.stop_reason(self.store.count_judged(), self._kept_back())
        return bool(self.stopped)

    def _kept_back(self) -> float:
        """Seconds for judging the best again."""
        if self.leader is None or self.store.judgement(self.leader.id, 1) is not None:
            return 0.0
        return min(SHARE * self.stop.budget_s, self._last_s())

    def _last_s(self) -> float:  # a sitting of its own, and a judgement twice as long as those before it
        return 2 * self.set_up_s + 2 * (self.store.cost_s() or 0.0)

    # ------------------------------------------------------------ judging

    def _hirer(self, stack: contextlib.ExitStack) -> Callable[[], Worker]:
        """What makes a worker."""
        self._allowed: Callable[[], int] = lambda: 1
        if self.workers == 1:

            def here() -> Worker:
                self.nursery = self._nursery()
                return InProcessWorker(self._opened(self.judging[0], self.stack), self.worker, self.say)

            return here
        from kernelworks.search.workers.crew import Crew, Papers

        self.say("the machine's peaks")
        self.peaks = self.peaks or measured_peaks(rough=True, device=self.store.problem.device)
        self.say(f"{self.workers} workers")
        problem = self.store.problem
        papers = Papers(
            problem, self.store.over, self.judging[0], self.store.threads, self.peaks, kind_of(problem.device)
        )
        crew = stack.enter_context(Crew(self.workers, papers))
        self._allowed = crew.allowed
        return crew.hire

    def _sits(self) -> bool:
        """Opens the sitting of this run, or the first worker's; False where the problem allows no verdict."""
        begin = time.monotonic()
        self.say("the reference")
        opened = self.farm.open(self._ended)
        self.set_up_s = time.monotonic() - begin
        if opened is None:
            return False
        if opened.work is None:
            self.stopped, self.why = "no verdict", opened.nothing
            return False
        self.work, least = opened.work, opened.work.limit
        self.store.keep_work(
            {
                "flop": self.work.flop, "bytes": self.work.bytes, "limit_s": least.seconds,
                "peak": least.whole.peak, "peaks": to_json(self.work.peaks, line=True),
            }
        )  # fmt: skip
        return True

    def _opened(self, budget: Budget, stack: contextlib.ExitStack) -> Sitting:
        alone, beside = (None, None) if self.workers == 1 else cores.turns(self.store.problem.device)
        return stack.enter_context(
            Sitting(
                self.store.problem, over=(self.store.over,), budget=budget, threads=self.store.threads,
                peaks=self.peaks, nursery=self.nursery, interpreted=self.interpreted, progress=self.say,
                known=own_text_predicate(self.store.problem), provided=precompiled_files(self.store.problem),
                alone=alone, beside=beside, many=True, keep_builds=True,
            )
        )  # fmt: skip

    def _nursery(self) -> Nursery:
        made = Nursery(interpreted=self.interpreted, modules=modules(self.store.problem))
        return self.stack.enter_context(made)

    def _undecided(self, task: Task, said: str) -> Judgement:
        return undecided_judgement(self.store.problem, task, self.store.threads, said)

    def _keep(self, done: TaskResult) -> None:
        seen = self.store.keep(done.task.id, done.judgement, cost_s=done.cost_s, worker=done.worker)
        self.judged_now += 1
        self.silent.clear()
        brought = self.store.proposer_results()
        self.wins = sum(b.won for b in brought.values())
        self.leader = next(iter(self.store.quickest()), None)
        if self.workers > 1:
            self.say(f"{done.task.said} is judged")
        for desk in self.desks:
            if desk.name == seen.draft.proposer:
                desk.take_up(brought[desk.name])
                self._told(desk, seen)

    def _told(self, desk: Desk, seen: StoredCandidate) -> None:
        try:
            desk.proposer.observe_verdict(seen)
        except Exception as error:  # one proposer's fault is no reason to end the others'
            desk.failed = f"it raised {type(error).__name__}: {error}"

    # ------------------------------------------------------------ proposing

    def _proposers(self, names: Sequence[str] | None, setting: Setting, options: Mapping[str, str]) -> None:
        assert self.work is not None
        work = self.work
        known = dataclasses.replace(setting, least_s=lambda threads: work.limit_on(threads).seconds)
        made, left = make_proposers(names, known, options)
        self.left = {line.partition(": ")[0]: line.partition(": ")[2] for line in left}
        brought = self.store.proposer_results()
        self.wins = sum(b.won for b in brought.values())
        self.desks = [Desk(proposer) for proposer in made]
        for desk in self.desks:
            if desk.name in brought:
                desk.take_up(brought[desk.name])

    def _ask(self, wanted: int, flying: int) -> bool:
        """Asks the proposer whose turn it is for drafts, as many as workers want or a few more; False if nobody has
        any."""
        desk = turn([desk for desk in self.desks if desk.name not in self.silent], self.wins)
        if desk is None:
            return False
        capacity = max(BATCH, wanted)
        if self.stop.most is not None:
            capacity = min(capacity, self.stop.most - self.store.count_judged() - flying)
        self.say(f"{desk.name} proposes")
        try:
            drafts = list(desk.proposer.propose(self.store.problem, self.store.history, capacity))[:capacity]
            named = [dataclasses.replace(draft, proposer=desk.name) for draft in drafts]
            fresh = self.store.add(named)
        except Exception as error:  # as above
            desk.failed = f"it raised {type(error).__name__}: {error}"
            return True
        if flying and not fresh:
            self.silent.add(desk.name)
        else:
            desk.record_drafts(len(drafts), len(fresh), self.wins)
        return True

    def _again(self) -> None:
        """Judges again, in full, what looks best and what may be as good: none is kept that is not right both times."""
        sitting: Sitting | None = None
        while not self.stop.interrupted:
            one = self._next_again()
            if one is None:
                return
            if sitting is None:
                spare = self.stop.budget_s - self.stop.seconds - self._last_s()
                self.nursery = self.nursery or self._nursery()
                sitting = self._opened(shorten_budget(self.judging[1], spare), self.stack)
            self._once_more(sitting, one)

    def _next_again(self) -> TriedCandidate | None:
        """Of the quickest that were not refused the second time, and of those whose intervals reach the first one's."""
        held = [one for one in self.store.quickest(MOST_REFUSED) if not self.store.has_failed_again(one.id)]
        if not held or held[0].low is None:
            return None
        begun = max(
            (t for t in self.store.summaries() if t.proposer == INITIAL_PROPOSER and t.low), key=_low, default=None
        )
        others = any(one.proposer != INITIAL_PROPOSER and self.store.low(one.id, 1) is not None for one in held)
        if begun is not None and others and self.store.judgement(begun.id, 1) is None:
            return begun  # what others are to be better than is known as well as they are
        rivals = [one for one in held[:MOST_REJUDGED] if one.high is not None and one.high >= held[0].low]
        twice = [one for one in rivals if self.store.low(one.id, 1) is not None]
        if twice and self.stop.seconds > self.stop.budget_s:
            return None
        return next((one for one in rivals if one not in twice), None)

    def _once_more(self, sitting: Sitting, one: TriedCandidate) -> None:
        seen = self.store.candidate(one.id)
        assert seen is not None
        sitting.say = lambda what: self.say(f"{one.proposer} #{one.number} once more: {what}")
        begin = time.monotonic()
        found = sitting.judge_text(*_text(seen))
        self.store.keep(one.id, found, cost_s=time.monotonic() - begin, worker=self.worker, round=1)


# ---------------------------------------------------------------- the record


def result(store: Store, run: _Run | None = None) -> Search:
    """What a store holds, and what a run of the search did."""
    work: dict[str, Any] = store.work
    tried, brought = store.summaries(), store.proposer_results()
    best = _best(store)
    remarks = {desk.name: desk.remark for desk in run.desks} | run.left if run else {}
    names = dict.fromkeys([*brought, *remarks])
    begun = max((t for t in tried if t.proposer == INITIAL_PROPOSER and t.low is not None), key=_low, default=None)
    return Search(
        problem=store.problem.name, format=store.problem.format, store=str(store.path), over=store.over,
        threads=store.threads, machine=store.machine, stopped=run.stopped if run else "", why=run.why if run else "",
        outcome=_outcome(store, tried, best, run.stopped if run else ""), candidates=tried, best=best,
        begun_with=begun.ratio if begun is not None else None,
        by_proposer=tuple(
            dataclasses.replace(brought.get(name, ProposerResult(name)), remark=remarks.get(name, "")) for name in names
        ),
        judged=store.count_judged(), judged_now=run.judged_now if run else 0, seconds=run.stop.seconds if run else 0.0,
        cost_s=store.cost_s(), limit_s=work.get("limit_s"), peak=work.get("peak", ""),
        flop=work.get("flop", 0.0), bytes=work.get("bytes", 0.0),
        peaks=_peaks(store.problem.device, work.get("peaks")), date=store.date(),
        workers=run.workers if run else 1, lost=run.lost if run else 0,
        each_s=run.judging_s / run.judged_now if run and run.judged_now else None,
    )  # fmt: skip


def _peaks(device: str, said: str | None) -> Peaks | GpuPeaks | None:
    if said is None:
        return None
    return from_json(GpuPeaks, said) if device == "cuda" else from_json(Peaks, said)


def _low(one: TriedCandidate) -> float:
    return one.low or 0.0


def _high(store: Store, one: TriedCandidate) -> float:
    """The upper end of an interval, by the second judgement where there was one."""
    again = store.judgement(one.id, 1)
    speed = next((s for s in again.speeds if s.over == store.over), None) if again is not None else None
    return speed.high if speed is not None else one.high or 0.0


def _best(store: Store) -> BestCandidate | None:
    """Of those that are right twice what is surely the quickest by the second time; without any by the first."""
    held = [one for one in store.quickest(MOST_REFUSED) if not store.has_failed_again(one.id)]
    if not held:
        return None
    twice = {one.id: low for one in held if (low := store.low(one.id, 1)) is not None}
    one = max(held, key=lambda t: twice.get(t.id, 0.0)) if twice else held[0]
    seen, first = store.candidate(one.id), store.judgement(one.id)
    assert seen is not None and first is not None
    return BestCandidate(one, seen.draft.code, first, store.judgement(one.id, 1))


def _outcome(store: Store, tried: Sequence[TriedCandidate], best: BestCandidate | None, stopped: str) -> str:
    """It is better only where the last judgement says so of a candidate that the search came upon, over the best that
    it was given (over the baseline where that was nothing), by more than both intervals."""
    if stopped == "no verdict":
        return "no verdict"
    if not any(t.verdict == "right" for t in tried):
        return "none right"
    if best is None or best.again is None or best.tried.proposer == INITIAL_PROPOSER:
        return "no better"
    speed = next((s for s in best.again.speeds if s.over == store.over), None)
    begun = max((_high(store, t) for t in tried if t.proposer == INITIAL_PROPOSER and t.high is not None), default=1.0)
    return "better" if speed is not None and speed.low > begun else "no better"
