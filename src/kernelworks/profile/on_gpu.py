"""One undisturbed run of a program on a GPU: timed plain, profiled, surveyed, and fitted together by a replay."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kernelworks.measure.clock.noise import sample_windows
from kernelworks.profile import replay
from kernelworks.profile.overhead import Floors
from kernelworks.profile.recording import recording_of
from kernelworks.profile.replay import PYTHON, Gap
from kernelworks.profile.timeline import (
    PATIENCE,
    UNKNOWN,
    CallRun,
    Timeline,
    plain_run,
    plain_walls,
    survey_limit,
    survey_run,
    window_s,
)
from kernelworks.profile.trace import Call, Place, Trace, join, without_collection

__all__ = ["GpuTimeline", "fit_timeline", "observe", "uses_gpu", "waiting"]

Say = Callable[[str], None]
MOST_RUNS, LEAST_RUNS = 15, 3


@dataclass(frozen=True, kw_only=True)
class GpuTimeline(Timeline):
    """The host's steps and their replay, which takes ``wall``."""

    seen: tuple[Call, ...]
    program: tuple[replay.Step, ...]
    host: float  # by which the host's steps of the profiled run were scaled
    device: float  # and the device's work
    played: replay.ReplayResult
    lost: float = 0.0  # seconds of device work that belongs to no launch of the run

    slowed: ClassVar[str] = "kernels"
    may_differ: ClassVar[float] = 0.075

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.seen

    @property
    def tail(self) -> float:
        return self.host * next((step.seconds for step in reversed(self.program) if step.waits), 0.0)

    @property
    def profiler_slowdown(self) -> float:
        return 1 / self.device

    def entries(self) -> list[CallRun]:
        found = {id(call): CallRun(call, critical=0.0) for call in self.seen}
        for step in self.program:
            ran = found.get(id(step.call))
            if ran is None:
                continue
            if step.kind == PYTHON:
                ran.before += step.seconds * self.host
            else:
                ran.host += step.seconds * self.host
            ran.waits = ran.waits or step.waits
        exclusive = replay.busy_seconds(self.played)
        critical, _ = replay.critical(self.program, self.played)
        outside: dict[str, Call] = {}
        for number, span in enumerate(self.played.spans):
            call = span.job.call or outside.setdefault(span.job.name, Call(UNKNOWN, 0, 0, place=Place()))
            ran = found.setdefault(id(call), CallRun(call, critical=0.0))
            ran.jobs.append(span.job)
            ran.kernels.append(span.job.seconds * self.device)
            ran.seconds += span.end - span.start
            ran.exclusive += exclusive[number]
            ran.critical += min(critical[number], exclusive[number])
        return list(found.values())

    def gaps(self) -> list[Gap]:
        return replay.gaps(self.program, self.played)

    def played_with(self, **changes: Any) -> float:
        """Seconds of the run played again with changes, such as ``waits=False`` or ``host=0.0``."""
        scales: dict[str, Any] = {"host": self.host, "device": self.device}
        return replay.play(self.program, self.pace, **(scales | changes)).wall


def waiting(run: Callable[[], Any]) -> Callable[[], Any]:
    """The program, over when the device is done."""

    def whole() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return whole


def uses_gpu(run: Callable[[], Any]) -> bool:
    """Whether the program gives a GPU anything to do; it has run once."""
    if not torch.cuda.is_available():
        return False
    if not torch.cuda.is_initialized():
        return False
    return recording_of(waiting(run), gpu=True).works_on_device


def observe(run: Callable[[], Any], floors: Floors, *, budget_s: float, say: Say) -> GpuTimeline:
    """Runs the program plain, then profiled, then surveyed. Raises what the program raises."""
    whole = waiting(run)
    say("timing without the profiler")
    plain_run(whole)
    first = plain_run(whole).wall
    runs = max(LEAST_RUNS, min(MOST_RUNS, int(0.3 * budget_s / max(first, 1e-9))))
    plain = sample_windows(
        lambda: plain_run(whole), runs, window_s=window_s(budget_s) / runs, deadline_s=PATIENCE * budget_s
    )
    say("timing every kernel")
    profiled = [recording_of(whole, gpu=True) for _ in range(3)][1:]  # the first one warms the profiler up
    with without_collection():
        quickest = min(profiled, key=lambda recording: recording.seconds).read()
    quickest.output = None
    del profiled
    say("surveying shapes and places")
    begun = time.perf_counter()
    # Without the device: the profiler's tree leaves out the ops that start while a kernel of its thread is running.
    survey, persistent = survey_run(whole, survey_limit(budget_s, first))
    wall, walls = plain_walls(plain.samples)
    with without_collection():
        timeline = fit_timeline(wall, quickest, survey, floors, persistent=persistent, walls=walls, noisy=plain.thrown)
    looking = time.perf_counter() - begun - wall
    collected = statistics.median(p.collected for p in plain.samples)
    return dataclasses.replace(
        timeline, noise=plain.noise, loud=plain.loud, looking_s=max(0.0, looking), collected=collected
    )


def fit_timeline(
    wall: float,
    profiled: Trace,
    survey: Trace,
    floors: Floors,
    *,
    persistent: dict[int, int] | None = None,
    walls: tuple[float, ...] = (),
    noisy: int = 0,
) -> GpuTimeline:
    """The timeline of one plain run from a profiled one and a survey: the replay fitted to ``wall``."""
    calls = join(profiled, survey)
    program = tuple(replay.steps(profiled, calls, floors))
    at = replay.pace(profiled)
    host, device = replay.fit_scales(program, at, wall)
    return GpuTimeline(
        wall=wall,
        walls=walls or (wall,),
        noisy=noisy,
        seen=tuple(calls),
        program=program,
        pace=at,
        host=host,
        device=device,
        played=replay.play(program, at, host=host, device=device),
        persistent=persistent or {},
        elsewhere=profiled.elsewhere,
        lost=profiled.lost,
        surveyed=len(survey.calls) if survey.cut else None,
        compiled=survey.compiled,
        broken=survey.broken,
        recompiled=survey.recompiled,
    )
