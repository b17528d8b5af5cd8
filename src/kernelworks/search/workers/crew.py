"""Who judges for a search with several workers: processes of Ray's where Ray is installed, else of the search's own on
its host. Either way each has a core set of its own, and a sitting (``juror``).

What runs beside each other are builds and questions of right and wrong; times are taken by one worker of a host at a
time (``shares.clock``), since cores share caches and memory. What others build meanwhile still shares those: both
variants of a race have that in turns, so it widens the interval, and the best is judged again once all workers are
gone. On a GPU, which is one worker's alone where there are enough and several workers' where not, a candidate's calls
have it for themselves, and builds and references are made beside each other: work of others would count as the
candidate's there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from kernelworks.machine import environment
from kernelworks.records.judgement import Judgement
from kernelworks.search.workers import cores as shares
from kernelworks.search.workers.farm import NoWorkers, OpenedSitting, Task, Worker
from kernelworks.search.workers.worker import Papers

__all__ = ["Crew", "Papers", "check_workers"]

COMMAND = (sys.executable, "-m", "kernelworks.search.workers.worker")
LEAVE_S = 10.0  # for a worker to end its own processes
FOLDER = "kw-crew-"
SLIVER = 0.01  # of a GPU, as Ray counts them
MEMORY = 128 << 20  # bytes of Ray's store of objects: what goes through it are texts


def _actor(paths: list[str]) -> type:
    """A class that Ray sends by its text: a process that has not found this package yet can make it."""

    class Apart:
        def __init__(self, papers: bytes) -> None:
            import pickle
            import sys

            sys.path[:0] = [path for path in paths if path not in sys.path]
            from kernelworks.search.workers.worker import Juror

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


class RayWorker:
    """A worker of Ray's, as the farm holds it."""

    def __init__(self, ray: Any, papers: Papers, number: int) -> None:
        wanted: dict[str, Any] = {"num_cpus": papers.threads}
        if papers.gpus:
            wanted["num_gpus"] = SLIVER  # on a host that has one; which one is the worker's own claim
        made = ray.remote(**wanted, max_restarts=0, max_task_retries=0)(_actor([path for path in sys.path if path]))
        self._ray, self._actor = ray, made.remote(pickle.dumps(papers))
        self.name = f"{platform.node()}:{os.getpid()}/{number}"
        self.opened: Future[OpenedSitting] = _read(self._actor.open.remote().future())
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


class LocalWorker:
    """A process of this host, as the farm holds it: what it is asked goes over a socket, one thing after the other."""

    def __init__(self, papers: Papers, number: int) -> None:
        ours, theirs = socket.socketpair()
        command = [*COMMAND, str(theirs.fileno())]
        paths = os.pathsep.join(path for path in sys.path if path)
        with theirs:  # in a session of its own: a key that interrupts the search is not for it
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env=environment.variables_without_secrets() | {"PYTHONPATH": paths}, start_new_session=True,
            )  # fmt: skip
        self._end, self._pool = Connection(ours.detach()), ThreadPoolExecutor(1)
        self.name = f"{platform.node()}:{os.getpid()}/{number}"
        self.opened: Future[OpenedSitting] = self._pool.submit(self._ask, papers)
        self._last: Future[Any] = self.opened

    def _ask(self, what: Papers | Task) -> Any:
        try:
            self._end.send_bytes(pickle.dumps(what))
            good, answer = pickle.loads(self._end.recv_bytes())
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
            raise ChildProcessError(f"its process ended with code {self._process.returncode}") from error
        if not good:
            raise ChildProcessError(answer)
        return answer

    def judge(self, task: Task) -> Future[tuple[Judgement, float]]:
        self._last = self._pool.submit(self._ask, task)
        return self._last

    def end(self) -> None:
        """Lets it end its processes, where it is not at something; then it is gone, whatever it is at: its processes
        end with it."""
        idle = self._last.done()
        if idle:
            self._end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S if idle else 0)
        self._process.kill()
        self._process.wait()
        self._pool.shutdown()


class Crew:
    """``with Crew(workers, papers) as crew: crew.hire()``, and ``crew.allowed()`` of them at a time.

    With Ray in its cluster where the program has one, or ``RAY_ADDRESS`` names one; else in one of its own, which ends
    with it. Without it processes of this host. Raises ValueError if so many workers have no core set each, and where
    ``RAY_ADDRESS`` is set and there is no Ray.
    """

    def __init__(self, workers: int, papers: Papers) -> None:
        self.wanted, self.hired = workers, 0
        self.papers = replace(papers, gpus=tuple(_gpus())) if papers.problem.device == "cuda" else papers
        self.ray = _ray()

    def __enter__(self) -> Crew:
        with contextlib.ExitStack() as stack:
            cores = len(shares.cores())
            if self.ray is None:
                self.papers = replace(self.papers, folder=_folder(stack))
            else:
                if not self.ray.is_initialized():
                    self._join(stack)
                cores = int(self.ray.cluster_resources().get("CPU", 0))
            _fitting(self.wanted, cores, self.papers.threads)
            share = shares.Share("cores", cores, self.wanted, self.papers.threads)
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

    def hire(self) -> Worker:
        self.hired += 1
        papers = replace(self.papers, number=self.hired - 1)
        return LocalWorker(papers, self.hired) if self.ray is None else RayWorker(self.ray, papers, self.hired)


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
    """Ray; None where it is not installed. Raises ValueError if a cluster of it is named then."""
    try:
        import ray
    except ImportError:
        if environment.ray_address():
            raise ValueError(
                "RAY_ADDRESS names a cluster of Ray's, which is not installed: pip install 'kernelworks[farm]' "
                "(or pip install ray)"
            ) from None
        return None
    return ray


def check_workers(workers: int, threads: int) -> None:
    """Raises ValueError if so many workers have no core set each on this host, or a cluster is named without Ray."""
    _ray()
    if not environment.ray_address():
        _fitting(workers, len(shares.cores()), threads)


def _gpus() -> list[str]:
    """The GPUs of this host that may be used, by number or name."""
    shown = environment.visible_gpus()
    return shown if shown is not None else [str(number) for number in range(torch.cuda.device_count())]


def _fitting(workers: int, there: int, each: int) -> None:
    if workers * each > there:
        what = f"{each} core{'s' if each > 1 else ''} each, one a thread"
        raise ValueError(f"workers takes at most {there // each} here ({what}, of {there} cores), got {workers}")
