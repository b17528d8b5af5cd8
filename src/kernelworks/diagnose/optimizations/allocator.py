"""malloc thresholds: glibc keeps what a program frees, if page faults are part of the wall clock.

torch has no caching allocator on the CPU. glibc maps each large block anew and returns it at once, so the operating
system pays for each large output of an op a second time, page by page. What is kept is the program's high-water mark:
memory that it has needed at once before.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping

from kernelworks.diagnose.optimization import PROCESS, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.program_trial import in_turns
from kernelworks.measure.clock.page_faults import (
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    RAISED_THRESHOLDS,
    free_bytes,
    grow_heap,
    release_memory,
    set_thresholds,
    thresholds,
)
from kernelworks.profile.on_cpu import CpuTimeline
from kernelworks.profile.overhead import PAGE

__all__ = ["OPTIMIZATION"]

LEAST = 0.02  # of the wall clock: fewer page faults make no measurable difference
CODE = f"""\
import ctypes
libc = ctypes.CDLL(None)
libc.mallopt({M_MMAP_THRESHOLD}, {RAISED_THRESHOLDS[M_MMAP_THRESHOLD]})  # M_MMAP_THRESHOLD; glibc alone takes it
libc.mallopt({M_TRIM_THRESHOLD}, {RAISED_THRESHOLDS[M_TRIM_THRESHOLD]})  # M_TRIM_THRESHOLD: never"""
NO_GLIBC = "this C library's malloc has no setting to keep what is freed; glibc's has"


class _Optimization:
    name = "allocator"
    takes = Takes(("process",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if not isinstance(timeline, CpuTimeline) or not timeline.faults:
            return
        floors = timeline.floors
        if timeline.faults * (floors.fault + floors.free) < LEAST * timeline.wall:
            return
        now = thresholds()
        if now is None:
            raise Impossible(NO_GLIBC)
        if now == RAISED_THRESHOLDS:
            return
        yield Candidate(
            self.name, PROCESS, "malloc keeps what is freed: no fresh pages for each large output", code=CODE
        )

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        """Runs the program so: some page faults remain (what is freed in pieces does not serve a larger block), and the
        cost of one depends on how many occur at once."""
        forecaster = scene.forecaster
        assert forecaster is not None and isinstance(forecaster.timeline, CpuTimeline)
        turns = in_turns(scene, self.apply(scene, candidate))
        return Promise(
            turns.saves, cost_bytes=(forecaster.timeline.faults or 0) * PAGE, how="the program was run with it"
        )

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        before = scene.keep("malloc's thresholds", thresholds)
        if before is None:
            raise Impossible(NO_GLIBC)
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        pages = (timeline.faults or 0) if isinstance(timeline, CpuTimeline) else 0

        def put() -> Callable[[], None]:
            _told.append(_told[0] if _told else before)
            held = free_bytes()
            set_thresholds(RAISED_THRESHOLDS)
            grow_heap(min(pages * PAGE, peak_bytes()))  # the first run with it is measured too
            return lambda: _back(held)

        return Change(put, verified_against="itself, as it changes no number", same_numbers=True)


_told: list[
    Mapping[int, int]
] = []  # malloc's own thresholds, once for each change in place: the last one out restores them


def _back(held: int) -> None:
    before = _told.pop()
    if not _told:
        set_thresholds(before)
        release_memory(held)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


OPTIMIZATION = _Optimization()
