"""A worker's own process: it claims what it judges on, sits down, and judges what it is handed.

``python -m kernelworks.search.workers.worker FD`` is one that a search has started on its own host: it is handed its
papers and its tasks over a socket, as pickles of the process that started it, and ends with that.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from kernelworks.judge.harness import Budget
from kernelworks.judge.problem import Problem
from kernelworks.judge.session import Sitting
from kernelworks.machine import environment, kind_of
from kernelworks.machine.parent_process import die_with_parent
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records.judgement import Judgement
from kernelworks.search.our_kernels_cpp import modules, own_text_predicate, precompiled_files
from kernelworks.search.workers import cores
from kernelworks.search.workers.farm import OpenedSitting, Task

__all__ = ["Juror", "Papers"]

PATIENCE_S = 600.0  # for cores that another search is to give back once its candidate is judged


@dataclass(frozen=True)
class Papers:
    """What a worker is made with."""

    problem: Problem
    over: str
    budget: Budget
    threads: int
    peaks: Peaks | GpuPeaks
    machine: str
    gpus: tuple[str, ...] = ()  # of the host, by number or name; the worker has one of them, or shares one
    number: int = 0  # of the worker
    folder: str | None = None  # for what it writes: Ray kills a worker's processes before they could clear up


class Juror:
    """A worker, in a process of its own."""

    def __init__(self, papers: Papers) -> None:
        self.papers, self.waited_s = papers, 0.0
        self.stack = contextlib.ExitStack()
        self.sitting: Sitting | None = None

    def open(self) -> OpenedSitting:
        """Claims what it judges on, and sits down. Raises ValueError on another kind of machine, TimeoutError."""
        papers, device = self.papers, self.papers.problem.device
        if device == "cuda" and papers.gpus:
            environment.show_gpu(self._gpu())
        if kind_of(device) != papers.machine:
            raise ValueError(f"a worker is on {kind_of(device)}, the search on {papers.machine}: times do not compare")
        claim = cores.claim_resources("cores", cores.cores(), papers.threads, PATIENCE_S)
        self.stack.callback(claim.let_go)
        os.sched_setaffinity(0, claim.numbers)
        torch.set_num_threads(papers.threads)
        tempfile.tempdir = papers.folder
        alone, beside = (functools.partial(self._waited, turn) for turn in cores.turns(device))
        sitting = self.stack.enter_context(
            Sitting(
                papers.problem, over=(papers.over,), budget=papers.budget, threads=papers.threads,
                peaks=papers.peaks, interpreted=device == "cpu", known=own_text_predicate(papers.problem),
                provided=precompiled_files(papers.problem), modules=modules(papers.problem), alone=alone, beside=beside,
                many=True,
            )
        )  # fmt: skip
        self.sitting = sitting
        return OpenedSitting(sitting.work, "" if sitting.nothing is None else str(sitting.nothing))

    def _gpu(self) -> str:
        """One that no other worker has; where all are taken, one of them, by turns."""
        gpus = self.papers.gpus
        try:
            claim = cores.claim_resources("gpus", gpus, 1, 0.0)
        except TimeoutError:
            return gpus[self.papers.number % len(gpus)]
        self.stack.callback(claim.let_go)
        return claim.numbers[0]

    @contextlib.contextmanager
    def _waited(self, turn: cores.Turn) -> Iterator[None]:
        """A turn, for which it may have to wait: that is no time of the candidate's."""
        begin = time.monotonic()
        with turn():
            self.waited_s += time.monotonic() - begin
            yield

    def judge(self, task: Task) -> tuple[Judgement, float]:
        assert self.sitting is not None
        begin, self.waited_s = time.monotonic(), 0.0
        found = self.sitting.judge_text(task.name, task.code, task.language)
        return found, time.monotonic() - begin - self.waited_s

    def leave(self) -> None:
        self.stack.close()


def main() -> None:
    die_with_parent()
    end, juror = Connection(int(sys.argv[1])), None
    try:
        while True:
            asked = pickle.loads(end.recv_bytes())
            try:
                if isinstance(asked, Papers):
                    juror = Juror(asked)
                    answer: object = juror.open()
                else:
                    assert juror is not None
                    answer = juror.judge(asked)
            except Exception as error:  # of any kind: whoever asked decides
                end.send_bytes(pickle.dumps((False, f"{type(error).__name__}: {error}")))
            else:
                end.send_bytes(pickle.dumps((True, answer)))
    except (EOFError, OSError):  # nobody asks any more
        if juror is not None:
            juror.leave()


if __name__ == "__main__":
    from kernelworks.search.workers import (
        worker as juror,  # by the name that what comes over the socket is pickled with
    )

    juror.main()
