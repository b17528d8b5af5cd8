"""What looking costs, and what a call costs at least: measured in this process, with these threads, within a second."""

from __future__ import annotations

import functools
import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernelworks.profile.recording import record

__all__ = ["Floors", "measure"]

CALLS = 1000
PAGE = mmap.PAGESIZE
FRESH = 16 * 1024 * 1024  # bytes


@dataclass(frozen=True)
class Floors:
    """Seconds. ``event`` is what the profiler adds for one event; a call without it takes ``gap`` between two ops (a
    loop in Python, argument parsing) and ``span`` inside the op at least; ``fault`` is what an op on all threads takes
    for one fresh page more than for a used one, ``free`` what giving a page back takes.
    """

    event: float
    gap: float
    span: float
    fault: float
    free: float


def measure() -> Floors:
    """The floors of this process. Medians of several rounds, profiled and not in turns."""
    x, out = torch.ones(1, device="cpu"), torch.empty(1, device="cpu")

    def loop() -> None:
        for _ in range(CALLS):
            torch.add(x, x, out=out)

    with torch.inference_mode():
        loop()
        plain, profiled, spans = [], [], []
        for _ in range(5):
            plain.append(_seconds(loop) / CALLS)
            trace = record(loop)
            profiled.append((trace.end - trace.start) / 1e9 / CALLS)
            spans.append(statistics.median(c.end - c.start for c in trace.calls) / 1e9)
    call, span = statistics.median(plain), statistics.median(spans)
    span = min(span, call)
    fault, free = _faults()
    return Floors(max(0.0, statistics.median(profiled) - call), call - span, span, fault, free)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _faults() -> tuple[float, float]:
    """Seconds a page: first touch by an op on all threads, less the same op again; and giving it back."""
    touch, free = [], []
    for _ in range(5):
        mapping = mmap.mmap(-1, FRESH)
        tensor = torch.frombuffer(mapping, dtype=torch.float32)
        first = _seconds(functools.partial(tensor.fill_, 1.0))
        again = _seconds(functools.partial(tensor.fill_, 2.0))
        del tensor
        touch.append(max(0.0, first - again))
        free.append(_seconds(mapping.close))
    pages = FRESH // PAGE
    return statistics.median(touch) / pages, statistics.median(free) / pages
