"""Who judges: workers, each with a sitting of its own; what each is at, and what is judged anew where one was lost.

A worker is this process (``InProcessWorker``), or a process of Ray's (``crew``). The farm knows neither the store nor
Ray: it hands out tasks and hands back verdicts. A task whose worker is gone goes to another one; only where ``TRIES``
of them were lost over it is it given up, with the verdict "undecided".
"""

from __future__ import annotations

import concurrent.futures
import datetime
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from kernelworks.judge.problem import Problem
from kernelworks.judge.session import Sitting, Work
from kernelworks.machine import machine
from kernelworks.records.judgement import Charge, Judgement

__all__ = [
    "Farm",
    "InProcessWorker",
    "NoWorkers",
    "OpenedSitting",
    "Task",
    "TaskResult",
    "Worker",
    "undecided_judgement",
]

TRIES = 3  # workers that a task may outlive, and that may fail to open one after the other
POLL_S = 0.2  # after which an interrupt, or another share of the machine, is seen

Say = Callable[[str], None]


class NoWorkers(ChildProcessError):
    """No worker could be had."""


@dataclass(frozen=True)
class Task:
    """A candidate to judge. ``said`` names it to whoever watches; ``coming`` are the names, texts and languages of what
    the same worker is given next."""

    id: str
    name: str
    said: str
    code: str
    language: str
    coming: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class OpenedSitting:
    """A worker's sitting: ``work`` is None where the problem allows no verdict, and ``nothing`` says why."""

    work: Work | None
    nothing: str = ""


@dataclass(frozen=True)
class TaskResult:
    """A verdict, and what it cost: seconds of its worker, without those that it waited for its turn at the clock."""

    task: Task
    judgement: Judgement
    cost_s: float
    worker: str


class Worker(Protocol):
    """``opened`` once its sitting is, or raises what kept it from that; ``judge`` raises where the worker is lost."""

    name: str
    opened: Future[OpenedSitting]

    def judge(self, task: Task) -> Future[tuple[Judgement, float]]: ...

    def end(self) -> None: ...


class InProcessWorker:
    """This process as a worker: what it is given is judged when ``judge`` returns."""

    def __init__(self, sitting: Sitting, name: str, say: Say) -> None:
        self.sitting, self.name, self._say = sitting, name, say
        self.opened: Future[OpenedSitting] = Future()
        self.opened.set_result(OpenedSitting(sitting.work, "" if sitting.nothing is None else str(sitting.nothing)))

    def judge(self, task: Task) -> Future[tuple[Judgement, float]]:
        self.sitting.say = lambda what: self._say(f"{task.said}: {what}")
        self._say(task.said)
        begin = time.monotonic()
        found = self.sitting.judge_text(task.name, task.code, task.language, task.coming)
        done: Future[tuple[Judgement, float]] = Future()
        done.set_result((found, time.monotonic() - begin))
        return done

    def end(self) -> None:
        """Whoever opened the sitting closes it."""


@dataclass
class _Post:
    worker: Worker
    task: Task | None = None
    verdict: Future[tuple[Judgement, float]] | None = None

    @property
    def free(self) -> bool:
        """Whether its sitting is open, and nothing is judged there."""
        return self.task is None and self.worker.opened.done() and self.worker.opened.exception() is None


@dataclass
class Farm:
    """``with Farm(hire, allowed, undecided) as farm``: ``hire`` makes a worker, ``allowed`` says how many there may be
    now (it may change at any time), ``undecided_judgement`` makes the verdict of a task that is given up, from why."""

    hire: Callable[[], Worker]
    allowed: Callable[[], int]
    undecided: Callable[[Task, str], Judgement]
    say: Say
    lost: int = 0  # workers that were gone before they had answered
    _posts: list[_Post] = field(default_factory=list)
    _anew: list[Task] = field(default_factory=list)  # whose worker is gone
    _losses: dict[str, int] = field(default_factory=dict)
    _failed: int = 0  # workers in a row that did not open

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, and whatever they are at."""
        for post in self._posts:
            post.worker.end()
        self._posts.clear()

    # ------------------------------------------------------------ who is there

    @property
    def pending_ids(self) -> set[str]:
        """The ids of tasks that were given and have no verdict yet."""
        return {post.task.id for post in self._posts if post.task is not None} | {task.id for task in self._anew}

    def open(self, ended: Callable[[], bool]) -> OpenedSitting | None:
        """What the first worker's sitting found when it was opened; None where the search ``ended`` before that.
        Raises NoWorkers."""
        while not ended():
            self._staff()
            waited = {post.worker.opened: post for post in self._posts}
            if not waited:
                self.say("waits for cores: other searches have them")
                time.sleep(POLL_S)
                continue
            done, _ = concurrent.futures.wait(waited, POLL_S, concurrent.futures.FIRST_COMPLETED)
            for opened in done:
                error = opened.exception()
                if error is None:
                    return opened.result()
                self._unopened(waited[opened], error)
        return None

    def free_slots(self) -> int:
        """How many tasks could be given now, those first that are to be judged anew."""
        self._staff()
        return sum(post.free for post in self._posts[: self.allowed()]) - len(self._anew)

    def give(self, task: Task) -> None:
        """To a worker that has none; where there is none, to the next that has."""
        self._anew.append(task)
        self._hand_out()

    def wait(self, seconds: float = POLL_S) -> list[TaskResult]:
        """Verdicts that are there, once there is one, or after so many seconds. Raises NoWorkers."""
        self._staff()
        self._hand_out()
        at_work = {post.verdict: post for post in self._posts if post.verdict is not None}
        opening = {post.worker.opened: post for post in self._posts if post.task is None and not post.free}
        if not at_work and not opening:
            time.sleep(seconds if self._anew else 0)
            return []
        all_of_them: list[Future[Any]] = [*at_work, *opening]
        there, _ = concurrent.futures.wait(all_of_them, seconds, concurrent.futures.FIRST_COMPLETED)
        for opened in there & opening.keys():
            if (error := opened.exception()) is not None:
                self._unopened(opening[opened], error)
        return [done for at in there & at_work.keys() if (done := self._taken(at_work[at])) is not None]

    def _staff(self) -> None:
        """As many workers as are allowed: those too many go once they have nothing to judge."""
        allowed = self.allowed()
        for post in self._posts[allowed:]:
            if post.task is None:
                post.worker.end()
                self._posts.remove(post)
        while len(self._posts) < allowed:
            self._posts.append(_Post(self.hire()))

    def _hand_out(self) -> None:
        for post in self._posts[: self.allowed()]:
            if post.free and self._anew:
                post.task = self._anew.pop(0)
                post.verdict = post.worker.judge(post.task)

    # ------------------------------------------------------------ what came of it

    def _taken(self, post: _Post) -> TaskResult | None:
        """The verdict of a task; None where its worker is gone, and it is tried anew."""
        task, verdict = post.task, post.verdict
        assert task is not None and verdict is not None
        error = verdict.exception()
        if error is None:
            post.task = post.verdict = None
            judgement, cost_s = verdict.result()
            self._failed = 0
            return TaskResult(task, judgement, cost_s, post.worker.name)
        self._gone(post)
        self.lost += 1
        self._losses[task.id] = self._losses.get(task.id, 0) + 1
        why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        self.say(f"{task.said}: its worker is gone ({why})")
        if self._losses[task.id] < TRIES:
            self._anew.insert(0, task)
            return None
        said = f"{TRIES} workers were lost while they judged it, the last since {why}"
        return TaskResult(task, self.undecided(task, said), 0.0, post.worker.name)

    def _unopened(self, post: _Post, error: BaseException) -> None:
        """A worker without a sitting: no task is to blame for that."""
        self._gone(post)
        self._failed += 1
        if self._failed >= TRIES:
            raise NoWorkers(f"no worker could be had: {type(error).__name__}: {error}") from error

    def _gone(self, post: _Post) -> None:
        post.worker.end()
        self._posts.remove(post)


def undecided_judgement(problem: Problem, task: Task, threads: int, said: str) -> Judgement:
    """Of a candidate that no judge came to an end with."""
    return Judgement(
        candidate=task.name, problem=problem.name, format=problem.format, language=task.language, verdict="undecided",
        reasons=(Charge("undecided", said),), remarks=(), worst=None, calls=0, elements=0, draws=(), shapes=(),
        bound=(), paces=(), speeds=(), limit_s=None, bound_by="", peak="", weights="", kernels=(), kept_from=(),
        open_to=(), threads=threads, build_s=0.0, seconds=0.0,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        machine=machine().name,
    )  # fmt: skip
