"""Ray's processes as workers: each has a core set of its own, with a GPU where the problem is for one, and a sitting.

What runs beside each other are builds and questions of right and wrong; times are taken by one worker of a host at a
time (``shares.clock``), since cores share caches and memory. What others build meanwhile still shares those: both arms
of a race have that in turns, so it widens the interval, and the best is judged again once all workers are gone. Workers
with a GPU each take times beside each other: what is timed there shares nothing.
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
from dataclasses import dataclass, replace
from pathlib import Path
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
from kernelworks.search.farm import NoWorkers, Opened, Task
from kernelworks.search.variants import known
from kernelworks.verdicts import Judgement

__all__ = ["Crew", "Papers", "possible"]

PATIENCE_S = 600.0  # for cores that another search is to give back once its candidate is judged
LEAVE_S = 10.0  # for a worker to end its own processes
FOLDER = "kw-ray-"
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
    gpus: tuple[str, ...] = ()  # of the host, by number or name; the worker has one of them
    folder: str | None = None  # for what it writes: Ray kills a worker's processes before they could clear up

    @property
    def kind(self) -> str:
        """Of what a worker has some for itself."""
        return _kind(self.problem.device)

    @property
    def count(self) -> int:
        """Of that, for each worker."""
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
        if papers.kind == "gpus":
            gpu = shares.claimed("gpus", papers.gpus, 1, PATIENCE_S)
            self.stack.callback(gpu.let_go)
            environment.show_gpu(gpu.numbers[0])
        claim = shares.claimed("cores", shares.cores(), papers.threads, PATIENCE_S)
        self.stack.callback(claim.let_go)
        os.sched_setaffinity(0, claim.numbers)
        torch.set_num_threads(papers.threads)
        tempfile.tempdir = papers.folder
        sitting = self.stack.enter_context(
            Sitting(
                papers.problem, over=(papers.over,), budget=papers.budget, threads=papers.threads,
                ceilings=papers.ceilings, interpreted=papers.kind == "cores", alone=self._alone,
                known=known(papers.problem),
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
        wanted = {"num_cpus": papers.threads} | ({"num_gpus": 1} if papers.kind == "gpus" else {})
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
        self.wanted, self.hired = workers, 0
        self.papers = replace(papers, gpus=tuple(_gpus())) if papers.kind == "gpus" else papers
        self.ray = _ray()

    def __enter__(self) -> Crew:
        with contextlib.ExitStack() as stack:
            if not self.ray.is_initialized():
                self._join(stack)
            resources = self.ray.cluster_resources()
            cores, gpus = (int(resources.get(kind, 0)) for kind in ("CPU", "GPU"))
            _fitting(self.wanted, cores, self.papers.threads, "cores")
            there = cores
            if self.papers.kind == "gpus":
                _fitting(self.wanted, gpus, 1, "gpus")
                there = gpus
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
        try:
            if cluster:
                ray.init(address=cluster, **quiet)
            else:
                folder = _folder(stack)
                self.papers = replace(self.papers, folder=folder)
                ray.init(
                    address="local", num_cpus=len(shares.cores()), num_gpus=len(_gpus()),
                    include_dashboard=False, object_store_memory=MEMORY, _temp_dir=folder, **quiet,
                )  # fmt: skip
        except Exception as error:  # of any kind: a port, a version, memory that is not there
            where = f"at RAY_ADDRESS={cluster}" if cluster else "here"
            raise NoWorkers(f"no Ray {where}: {type(error).__name__}: {error}") from error
        stack.callback(ray.shutdown)

    def hire(self) -> Hired:
        self.hired += 1
        return Hired(self.ray, self.papers, self.hired)


def _folder(stack: contextlib.ExitStack) -> str:
    """Where Ray and workers write, until the stack ends; those of searches that were killed go too. Its name is short:
    sockets lie in it, whose paths may not be long."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        if not Path("/proc", left.name.removeprefix(FOLDER).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
        _fitting(workers, len(shares.cores()), threads, "cores")
        if _kind(device) == "gpus":
            _fitting(workers, len(_gpus()), 1, "gpus")


def _kind(device: str) -> str:
    return "cores" if device == "cpu" else "gpus"


def _gpus() -> list[str]:
    """The GPUs of this host that may be used, by number or name."""
    shown = environment.gpus_shown()
    return shown if shown is not None else [str(number) for number in range(torch.cuda.device_count())]


def _fitting(workers: int, there: int, each: int, kind: str) -> None:
    if workers * each > there:
        what = "a GPU each" if kind == "gpus" else f"{each} core{'s' if each > 1 else ''} each, one a thread"
        raise ValueError(f"workers takes at most {there // each} here ({what}, of {there} {kind}), got {workers}")
