"""Building candidates: each in a process that ends after its first answer, those that come next beside it.

A compiler has one thread, and a sitting more cores: while a candidate is built, so are those that come next, one on
each core that is left; and beside what is asked of a kernel of ours once its times are taken. They lie there stopped
then, and nothing is timed before they do. Only kernels of ours are built ahead: nobody else's code is let run before it
is on trial.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelworks.judge.problem import Candidate
from kernelworks.judge.process.cleanup import remove_folder
from kernelworks.judge.process.pool import ProcessEnded
from kernelworks.judge.process.sanitise import parse_load_answer
from kernelworks.judge.roles.handle import VariantProcess

if TYPE_CHECKING:
    from kernelworks.judge.harness import Bench

__all__ = ["Building", "Site"]


@dataclass
class Building:
    """A candidate's first process and the folder that it compiles in, which the processes after it share."""

    candidate: Candidate
    variant: VariantProcess
    folder: Path
    begun: float
    said: Any = None
    seconds: float = 0.0

    def wait_loaded(self, patience_s: float) -> Any:
        """What it said of how it was loaded. Raises ProcessEnded."""
        if self.said is None:
            self.said = parse_load_answer(self.variant.process.hear(patience_s)[0])
            self.seconds = time.monotonic() - self.begun
        return self.said

    @property
    def has_load_error(self) -> bool:
        """Whether it does not load: its process has ended then."""
        return self.said is not None and "raised" in self.said

    def end(self) -> None:
        self.variant.process.end()
        remove_folder(self.folder)


class Site:
    """Where a bench's candidates are built."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.ahead: list[Building] = []

    def start_build(self, candidate: Candidate, folder: Path) -> Building:
        """Raises ProcessEnded."""
        begin = time.monotonic()
        variant = self.bench.start_variant("candidate", candidate, self.bench.problem.shapes[0], folder)
        return Building(candidate, variant, folder, begin)

    def take_built(self, candidate: Candidate) -> Building | None:
        """The candidate as it was built beside another one; None where it was not."""
        found = next((one for one in self.ahead if one.candidate == candidate), None)
        if found is None:
            return None
        self.ahead.remove(found)
        if found.said is None or found.has_load_error or found.variant.process.is_alive():
            return found
        found.end()
        return None

    def begin_beside(self, coming: Sequence[Candidate]) -> None:
        """Begins those that come next, as many as there are cores left beside a compiler."""
        self.clear()  # who came instead of them has not asked for them
        self._begin(coming, self._cores() - 1)

    def begin_behind(self, coming: Sequence[Candidate]) -> None:
        """Begins those that come next where none of them is built yet, now that nothing more is timed of the candidate
        on trial: one on each core."""
        if not self.ahead:
            self._begin(coming, self._cores())

    def _cores(self) -> int:
        return min(self.bench.threads, len(os.sched_getaffinity(0)))

    def _begin(self, coming: Sequence[Candidate], most: int) -> None:
        if self.bench.device.apart:
            return  # nothing is compiled there before a call, which has to wait for its turn
        for one in [one for one in coming if one.known][:most]:
            with contextlib.suppress(ProcessEnded):
                self.ahead.append(self.start_build(one, self.bench.nursery.folder("candidate")))

    def rest(self) -> None:
        """All that were begun are built, or given up: their own trial begins anew, and says what is wrong."""
        for one in [*self.ahead]:
            try:
                one.wait_loaded(self.bench.budget.build_s)
                if not one.has_load_error:
                    one.variant.process.stop()
            except ProcessEnded:
                self.ahead.remove(one)
                one.end()

    def clear(self) -> None:
        for one in self.ahead:
            one.end()
        self.ahead.clear()
