"""Ray's processes as workers: each has a core set, or a GPU, of its own, and a sitting there.

What runs beside each other are builds and questions of right and wrong; times are taken by one worker of a host at a
time (``shares.clock``), since cores share caches and memory. What others build meanwhile still shares those: both arms
of a race have that in turns, so it widens the interval, and the best is judged again once all workers are gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from kernelworks import environment
from kernelworks.judge.bench import Budget
from kernelworks.judge.problem import Problem
from kernelworks.judge.sitting import Sitting
from kernelworks.machine import machine
from kernelworks.records import Ceilings, GpuCeilings
from kernelworks.search import shares
from kernelworks.search.farm import Opened, Task
from kernelworks.verdicts import Judgement

__all__ = ["Crew", "Papers", "possible"]

PATIENCE_S = 600.0  # for cores that another search is to give back once its candidate is judged
LEAVE_S = 10.0  # for a worker to end its own processes
MEMORY = 128 << 20  # bytes of Ray's store of objects: what goes through it are texts


@dataclass(frozen=True)
class Papers:
    """What a worker is made with."""

    problem: Problem
    over: str
    budget: Budget
    threads: int
    ceilings: Ceilings | GpuCeilings
    machine: str

    @property
    def kind(self) -> str:
        """Of what a worker has some for itself."""
        return _kind(self.problem.device)

    @property
    def count(self) -> int:
        return 1 if self.kind == "gpus" else self.threads


class Juror:
    """A worker, in a process of its own."""

    def __init__(self, papers: Papers) -> None:
        self.papers, self.waited_s = papers, 0.0
        self.stack = contextlib.ExitStack()
        self.sitting: Sitting | None = None

    def open(self) -> Opened:
        """Claims what it judges on, and sits down. Raises ValueError on another kind of machine, TimeoutError."""
        papers = self.papers
        if machine().kind != papers.machine:
            raise ValueError(f"a worker is on {machine().kind}, the search on {papers.machine}: times do not compare")
        claim = shares.claimed(papers.kind, _there(papers.kind), papers.count, PATIENCE_S)
        self.stack.callback(claim.let_go)
        if papers.kind == "gpus":
            environment.show_gpu(claim.numbers[0])
        else:
            os.sched_setaffinity(0, claim.numbers)
        torch.set_num_threads(papers.threads)
        sitting = self.stack.enter_context(
            Sitting(
                papers.problem, over=(papers.over,), budget=papers.budget, threads=papers.threads,
                ceilings=papers.ceilings, interpreted=True, alone=self._alone,
            )
        )  # fmt: skip
        self.sitting = sitting
        return Opened(sitting.work, "" if sitting.nothing is None else str(sitting.nothing))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Its turn at the clock. A GPU is its own."""
        if self.papers.kind == "gpus":
            yield
            return
        begin = time.monotonic()
        with shares.clock():
            self.waited_s += time.monotonic() - begin
            yield

    def judge(self, task: Task) -> tuple[Judgement, float]:
        assert self.sitting is not None
        begin, self.waited_s = time.monotonic(), 0.0
        found = self.sitting.judge_text(task.name, task.code, task.language)
        return found, time.monotonic() - begin - self.waited_s

    def leave(self) -> None:
        self.stack.close()


def _actor(paths: list[str]) -> type:
    """A class that Ray sends by its text: a process that has not found this package yet can make it."""

    class Apart:
        def __init__(self, papers: bytes) -> None:
            import pickle
            import sys

            sys.path[:0] = [path for path in paths if path not in sys.path]
            from kernelworks.search.crew import Juror

            self.pickle, self.juror = pickle, Juror(pickle.loads(papers))

        def open(self) -> bytes:
            return self.pickle.dumps(self.juror.open())

        def judge(self, task: bytes) -> bytes:
            return self.pickle.dumps(self.juror.judge(self.pickle.loads(task)))

        def leave(self) -> None:
            self.juror.leave()

    return Apart


def _read(found: Future[bytes]) -> Future[Any]:
    """What a worker answers."""
    answer: Future[Any] = Future()

    def take(said: Future[bytes]) -> None:
        error = said.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(pickle.loads(said.result()))

    found.add_done_callback(take)
    return answer


class Hired:
    """A worker of Ray's, as the farm holds it."""

    def __init__(self, ray: Any, papers: Papers, number: int) -> None:
        wanted = {"num_gpus": 1} if papers.kind == "gpus" else {"num_cpus": papers.threads}
        made = ray.remote(**wanted, max_restarts=0, max_task_retries=0)(_actor([path for path in sys.path if path]))
        self._ray, self._actor = ray, made.remote(pickle.dumps(papers))
        self.name = f"{platform.node()}:{os.getpid()}/{number}"
        self.opened: Future[Opened] = _read(self._actor.open.remote().future())
        self._last: Future[Any] = self.opened

    def judge(self, task: Task) -> Future[tuple[Judgement, float]]:
        self._last = _read(self._actor.judge.remote(pickle.dumps(task)).future())
        return self._last

    def end(self) -> None:
        """Lets it end its processes, where it is not at something; then it is gone, whatever it is at: its processes
        end with it."""
        with contextlib.suppress(Exception):
            if self._last.done() and self._last.exception() is None:
                self._ray.get(self._actor.leave.remote(), timeout=LEAVE_S)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


class Crew:
    """``with Crew(workers, papers) as crew: crew.hire()``, and ``crew.allowed()`` of them at a time.

    In Ray's cluster where the program has one, or ``RAY_ADDRESS`` names one; else in one of its own, which ends with
    it. Raises ValueError without Ray, and where so many workers have no core set, or GPU, each.
    """

    def __init__(self, workers: int, papers: Papers) -> None:
        self.wanted, self.papers, self.hired = workers, papers, 0
        self.ray = _ray()

    def __enter__(self) -> Crew:
        with contextlib.ExitStack() as stack:
            if not self.ray.is_initialized():
                self._join(stack)
            there = int(self.ray.cluster_resources().get("GPU" if self.papers.kind == "gpus" else "CPU", 0))
            _fitting(self.wanted, there, self.papers.count, self.papers.kind)
            share = shares.Share(self.papers.kind, there, self.wanted, self.papers.count)
            self.allowed = stack.enter_context(share).workers
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def _join(self, stack: contextlib.ExitStack) -> None:
        ray = self.ray
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        cluster = environment.ray_address()
        if cluster:
            ray.init(address=cluster, **quiet)
        else:
            folder = tempfile.mkdtemp(prefix="kw-ray-")  # short: sockets lie in it, whose paths may not be long
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            ray.init(
                address="local", num_cpus=len(shares.cores()), num_gpus=len(_there("gpus")), include_dashboard=False,
                object_store_memory=MEMORY, _temp_dir=folder, **quiet,
            )  # fmt: skip
        stack.callback(ray.shutdown)

    def hire(self) -> Hired:
        self.hired += 1
        return Hired(self.ray, self.papers, self.hired)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError(
            "workers above 1 are processes of Ray's, which is not installed: pip install 'kernelworks[farm]' "
            "(or pip install ray)"
        ) from None
    return ray


def possible(workers: int, threads: int, device: str) -> None:
    """Raises ValueError without Ray, and where so many workers have no core set, or GPU, each on this host."""
    _ray()
    if not environment.ray_address():
        kind = _kind(device)
        _fitting(workers, len(_there(kind)), 1 if kind == "gpus" else threads, kind)


def _kind(device: str) -> str:
    return "cores" if device == "cpu" else "gpus"


def _there(kind: str) -> list[int]:
    """The processors, or the GPUs, of this host."""
    if kind == "cores":
        return shares.cores()
    return list(range(torch.cuda.device_count()))


def _fitting(workers: int, there: int, each: int, kind: str) -> None:
    if workers * each > there:
        what = "a GPU each" if kind == "gpus" else f"{each} core{'s' if each > 1 else ''} each, one a thread"
        raise ValueError(f"workers takes at most {there // each} here ({what}, of {there} {kind}), got {workers}")
