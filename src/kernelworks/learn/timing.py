"""A learner's function and the solution in turns, on one set of inputs, each first held against the reference."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelworks.learn.buffers import PATTERNS, place_case
from kernelworks.learn.case import Reference, exact_arguments
from kernelworks.learn.exercise import Exercise
from kernelworks.learn.faults import Observation, judge
from kernelworks.machine import machine
from kernelworks.measure.clock.noise import cpu_times, noise_between

__all__ = ["time_calls"]

BUDGET_S = 0.8  # of all calls together
SAMPLE_S = 0.002  # one sample: as many calls as take so long
LEAST_SAMPLES = 5


def _in_slices(function: Callable[..., Any], arguments: Callable[..., list[Any]], count: int) -> Callable[[], None]:
    """A call that runs every slice on a thread of its own, this thread's among them."""
    prepared = [arguments(index, count) for index in range(count)]

    def call() -> None:
        others = [threading.Thread(target=function, args=each) for each in prepared[1:]]
        for thread in others:
            thread.start()
        function(*prepared[0])
        for thread in others:
            thread.join()

    return call


def time_calls(
    exercise: Exercise, reference: Reference, functions: Mapping[str, Callable[..., Any]],
    call_arguments: Callable[..., list[Any]],
) -> dict[str, Any]:  # fmt: skip
    """Median, 10th and 90th percentile of each function's call in seconds, the work of a call, what others used of the
    machine. A function that is wrong on these inputs has a sentence and no time."""
    case = reference.timed()
    given = exact_arguments(case)
    expected, bound = reference.reference(**given), reference.bound(**given)
    threads = machine().cores if exercise.slices else 1
    calls: dict[str, Callable[[], None]] = {}
    wrong: dict[str, str] = {}
    held = {}
    for name, function in functions.items():
        buffers = held[name] = place_case(case, at_end=False, pattern=PATTERNS[0])

        def arguments(*slices: int, placed: Any = buffers) -> list[Any]:
            return call_arguments(exercise, case, placed, *slices)

        if exercise.slices:
            calls[name] = _in_slices(function, arguments, threads)
        else:
            ready = arguments()
            calls[name] = lambda function=function, ready=ready: function(*ready)  # type: ignore[misc]
        calls[name]()
        seen = Observation(case, expected, bound, {n: np.array(b.view) for n, b in buffers.items() if b.is_output})
        verdict = judge([seen], reference)
        if not verdict.right:
            wrong[name] = verdict.sentence
            del calls[name]
    samples, noise = _sampled(calls)
    deciles = {name: statistics.quantiles(found, n=10) for name, found in samples.items()}
    return {
        "about": case.about, "flop": case.flop, "bytes": case.bytes, "threads": threads, "wrong": wrong,
        "ratio": _ratio(samples, is_busy=bool(noise)),
        "median_s": {name: statistics.median(found) for name, found in samples.items()},
        "low_s": {name: found[0] for name, found in deciles.items()},
        "high_s": {name: found[-1] for name, found in deciles.items()}, "busy": noise,
    }  # fmt: skip


def _ratio(samples: Mapping[str, list[float]], *, is_busy: bool = False) -> float:
    """The learner's time over the solution's: the median over pairs of samples that were taken one after the other.

    On a busy machine one of a pair may have waited for a core, so the two shortest times must say the same: of the two
    ratios the one nearer to 1.
    """
    pairs = list(zip(samples.get("yours", ()), samples.get("solution", ()), strict=False))
    if not pairs:
        return 0.0
    ratio = statistics.median([yours / solution for yours, solution in pairs])
    shortest = min(yours for yours, _ in pairs) / min(solution for _, solution in pairs)
    return min(ratio, shortest, key=lambda found: abs(math.log(found))) if is_busy else ratio


def _sampled(calls: Mapping[str, Callable[[], None]]) -> tuple[dict[str, list[float]], str]:
    """Seconds of a call, in turns until the budget is spent; and what others used, "" if that was little."""
    counts: dict[str, int] = {}
    for name, call in calls.items():
        begun = time.perf_counter()
        call()
        counts[name] = max(1, int(SAMPLE_S / max(time.perf_counter() - begun, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    before, begun = cpu_times(), time.perf_counter()
    while calls and (
        time.perf_counter() - begun < BUDGET_S or min(len(found) for found in samples.values()) < LEAST_SAMPLES
    ):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            samples[name].append((time.perf_counter() - start) / counts[name])
    noise = noise_between(before, cpu_times())
    return samples, str(noise) if noise.loud else ""
