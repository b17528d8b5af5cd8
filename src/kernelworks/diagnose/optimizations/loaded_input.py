"""Advice: a DataLoader that the program waits for, and the line at which it waits.

Without workers the main thread reads, transforms and collates a batch between two steps. With workers the batch is
ready when it is needed. On a GPU a batch in pinned memory is copied while the device computes. Only the author knows
whether several processes may read a data set, so this is advice and never applied.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernelworks.diagnose.optimization import PROGRAM, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.sites.functions import LIBRARIES

__all__ = ["OPTIMIZATION", "Loading", "line_that_asks", "loadings"]

NOTABLE = 0.05  # of the wall clock: with less waiting there is no advice
WORKERS = "num_workers=2, persistent_workers=True"
MORE = "num_workers={more}, prefetch_factor=4, persistent_workers=True"
PIN_MEMORY = "pin_memory=True"
ASYNC_COPY = '\nbatch = batch.to("cuda", non_blocking=True)'


@dataclass
class Loading:
    """The batches that a run takes from a DataLoader at one line."""

    source: str
    workers: int
    pinned: bool
    batches: int = 0
    seconds: float = 0.0


def loadings(run: Callable[[], Any]) -> list[Loading]:
    """Each of them in a run, by the line that asks for a batch."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    batches: Any = _BaseDataLoaderIter
    taking = batches.__next__
    found: dict[tuple[str, int, bool], Loading] = {}

    def take(self: Any) -> Any:
        begin = time.perf_counter()
        batch = taking(self)
        took = time.perf_counter() - begin
        looks = line_that_asks(), int(self._num_workers), bool(self._pin_memory)
        loading = found.setdefault(looks, Loading(*looks))
        loading.batches += 1
        loading.seconds += took
        return batch

    batches.__next__ = take
    try:
        run()
    finally:
        batches.__next__ = taking
    return list(found.values())


def line_that_asks() -> str:
    """The line of the program's own from which the caller was called."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = os.path.realpath(frame.f_code.co_filename)
        if not file.startswith(LIBRARIES) and os.path.exists(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return "the program"


class _Optimization:
    name = "input"
    takes = Takes(("program",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        program = scene.program
        if timeline is None or program is None:
            return
        if not any(call.name.startswith("DataLoader") for call in timeline.calls):
            return
        for each in scene.keep("what is loaded", lambda: loadings(program.run)):
            if each.seconds >= NOTABLE * scene.wall:
                yield _candidate(scene, each)

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(None)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        raise Impossible(candidate.advice)


def _candidate(scene: Scene, loading: Loading) -> Candidate:
    waits = f"{loading.source}: the program waits {loading.seconds * 1e3:.3g} of {scene.wall * 1e3:.3g} ms a run for "
    waits += f"{loading.batches} batches"
    wanted = [WORKERS if not loading.workers else MORE.format(more=2 * loading.workers)]
    todo = "it makes them itself: use workers" if not loading.workers else "its workers are too slow: use more"
    if scene.on_gpu and not loading.pinned:
        wanted.append(PIN_MEMORY)
        todo += ", into pinned memory"
    code = f"DataLoader(..., {', '.join(wanted)})" + (ASYNC_COPY if PIN_MEMORY in wanted else "")
    return Candidate("input", PROGRAM, "batches prefetched", code=code, advice=f"{waits}; {todo}")


OPTIMIZATION = _Optimization()
