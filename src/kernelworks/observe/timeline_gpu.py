"""How one undisturbed run of a GPU program went: timed plain, profiled, surveyed, and fitted together by a replay."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.ceilings.quiet import QUIET, Noise, sift
from kernelworks.observe import replay
from kernelworks.observe.overhead import Floors
from kernelworks.observe.places import Survey
from kernelworks.observe.timeline import PATIENCE, plain_run, window_s
from kernelworks.observe.trace import Call, Trace, join, record, without_collection

__all__ = ["GpuTimeline", "observe", "settle", "uses_gpu", "waiting"]

Say = Callable[[str], None]
MOST_RUNS, LEAST_RUNS = 15, 3


@dataclass(frozen=True)
class GpuTimeline:
    """One run: the host's steps and their replay, which takes ``wall`` (seconds, plain, median)."""

    wall: float
    walls: tuple[float, ...]
    noisy: int
    calls: tuple[Call, ...]
    program: tuple[replay.Step, ...]
    pace: replay.Pace
    host: float  # by which the host's steps of the profiled run were scaled
    device: float  # and the device's work
    played: replay.Played
    persistent: dict[int, int]
    elsewhere: int
    lost: float  # seconds of device work that belongs to no launch of the run
    noise: Noise = QUIET  # of the windows that were kept
    loud: bool = False  # no window was quiet

    def replayed(self, **changes: Any) -> float:
        """Seconds of the replay with changes, such as ``waits=False`` or ``host=0.0``."""
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
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return record(waiting(run), gpu=True).device_seconds > 0


def observe(run: Callable[[], Any], floors: Floors, *, budget_s: float, say: Say) -> GpuTimeline:
    """Runs the program plain, then profiled, then surveyed. Raises what the program raises."""
    whole = waiting(run)
    say("timing without the profiler")
    plain_run(whole)
    runs = max(LEAST_RUNS, min(MOST_RUNS, int(0.3 * budget_s / max(plain_run(whole).wall, 1e-9))))
    plain = sift(lambda: plain_run(whole), runs, window_s=window_s(budget_s) / runs, deadline_s=PATIENCE * budget_s)
    say("timing every kernel")
    timed = [_without_output(record(whole, gpu=True)) for _ in range(3)][1:]
    say("surveying shapes and places")
    survey = Survey()
    # Without the device: the profiler's tree leaves out the ops that start while a kernel of its thread is running.
    surveyed = _without_output(record(whole, survey=survey))
    with without_collection():
        timeline = settle(
            statistics.median(p.wall for p in plain.samples),
            min(timed, key=lambda t: t.end - t.start),
            surveyed,
            floors,
            persistent=survey.persistent,
            walls=tuple(p.wall for p in plain.samples),
            noisy=plain.thrown,
        )
    return dataclasses.replace(timeline, noise=plain.noise, loud=plain.loud)


def settle(
    wall: float,
    timed: Trace,
    surveyed: Trace,
    floors: Floors,
    *,
    persistent: dict[int, int] | None = None,
    walls: tuple[float, ...] = (),
    noisy: int = 0,
) -> GpuTimeline:
    """The timeline of one plain run from a profiled one and a survey: the replay fitted to ``wall``."""
    calls = join(timed, surveyed)
    program = tuple(replay.steps(timed, calls, floors))
    at = replay.pace(timed)
    host, device = replay.fitted(program, at, wall)
    played = replay.play(program, at, host=host, device=device)
    return GpuTimeline(
        wall, walls or (wall,), noisy, tuple(calls), program, at, host, device, played, persistent or {},
        timed.elsewhere, timed.lost,
    )  # fmt: skip


def _without_output(trace: Trace) -> Trace:
    trace.output = None
    return trace
