"""The wall clock of a trace, cut by cause. With a GPU: what ran on it, and why it was idle; else what the host did.

A stretch in which the GPU is idle ends with work that some call launched. Until that call was over the GPU waited for
the host, which was in an op, in a call that waits for the GPU, or in neither; what is left after it is the launch's own
latency. If the work was launched before the stretch began, it was queued.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelworks.profile.foreign.events import COPY, FILL, KERNEL, OP, RUNTIME, STEP, Events
from kernelworks.profile.foreign.intervals import Stretches, union
from kernelworks.profile.foreign.nesting import Nesting, is_torch_op

__all__ = [
    "COMPUTE_PARTS",
    "KERNELS",
    "Window",
    "device_breakdown",
    "find_window",
    "host_breakdown",
    "is_communication",
]

COMMUNICATION = re.compile(r"nccl|rccl", re.I)
WAITS = re.compile(r"Synchronize|cudaMemcpy(?!Async)|hipMemcpy(?!Async|WithStream)", re.I)
LOADER = re.compile(r"DataLoader", re.I)

KERNELS, EXPOSED_COMMUNICATION, EXPOSED_COPIES = "kernels", "communication, not overlapped", "copies, not overlapped"
IN_OPS, IN_WAITS, IN_PYTHON = (
    "GPU idle: dispatch and launches (host)", "GPU idle: synchronization", "GPU idle: Python and framework",
)  # fmt: skip
IN_LATENCY, IN_QUEUE, IN_LOADER = (
    "GPU idle: launch latency",
    "GPU idle: between queued kernels",
    "GPU idle: input (DataLoader)",
)
COMPUTE_PARTS = (KERNELS, "ops")


@dataclass(frozen=True)
class Window:
    """The stretch of time that is accounted for, in microseconds, and the steps in it."""

    start: float
    end: float
    steps: tuple[float, ...]  # seconds
    has_steps: bool

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e6


def is_communication(name: str) -> bool:
    return COMMUNICATION.search(name) is not None


def find_window(events: Events) -> Window:
    """From the first marked step to the end of the last, with the GPU's work for it; without marks the whole trace."""
    counted = events.of(OP, RUNTIME, KERNEL, COPY, FILL)
    marked = events.of(STEP)
    if marked.any():
        starts, ends = np.sort(events.start[marked]), np.sort(events.end[marked])
        return Window(float(starts[0]), float(ends[-1]), tuple(_steps(starts, ends)), True)
    if not counted.any():
        return Window(0.0, 0.0, (), False)
    return Window(float(events.start[counted].min()), float(events.end[counted].max()), (), False)


def _steps(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> list[float]:
    """Seconds of each step; a mark that the GPU's threads repeat counts once."""
    found: list[tuple[float, float]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if not found or start >= found[-1][1] - 1.0:
            found.append((start, end))
    return [(end - start) / 1e6 for start, end in found]


# ---------------------------------------------------------------- with a GPU


def device_breakdown(events: Events, window: Window) -> dict[str, float]:
    """Seconds by part; they add to the window."""
    texts = events.table.names.texts
    communicates = np.array([is_communication(text) for text in texts], bool)[events.name]
    kernels = _covered(events, events.of(KERNEL) & ~communicates, window)
    together = _covered(events, events.of(KERNEL) & communicates, window)
    copies = _covered(events, events.of(COPY, FILL), window)
    busy = _covered(events, events.of(KERNEL, COPY, FILL), window)
    parts = {
        KERNELS: kernels.length,
        EXPOSED_COMMUNICATION: together.less(kernels).length,
        EXPOSED_COPIES: copies.less(kernels).less(together).length,
        **_idle(events, window, busy),
    }
    return {name: seconds / 1e6 for name, seconds in parts.items()}


def _covered(events: Events, chosen: NDArray[np.bool_], window: Window) -> Stretches:
    return union(
        np.clip(events.start[chosen], window.start, window.end), np.clip(events.end[chosen], window.start, window.end)
    )


def _idle(events: Events, window: Window, busy: Stretches) -> dict[str, float]:
    """Why the GPU did nothing, in microseconds by part."""
    idle = busy.gaps(window.start, window.end)
    launch_end = _launch_ends(events, idle)
    known = np.isfinite(launch_end)
    # until when the host is to blame: all of the last stretch, and of one whose launch is not known
    host_end = np.where(known, np.clip(launch_end, idle.start, idle.end), idle.end)
    queued = known & (launch_end <= idle.start)
    host = union(idle.start[~queued], host_end[~queued])
    texts = events.table.names.texts
    waits = np.array([WAITS.search(text) is not None for text in texts], bool)[events.name]
    loads = np.array([LOADER.search(text) is not None for text in texts], bool)[events.name]
    in_waits = host.common(_covered(events, events.of(RUNTIME) & waits, window))
    rest = host.less(in_waits)
    in_loader = rest.common(_covered(events, loads & ~events.of(KERNEL, COPY, FILL, STEP), window))
    rest = rest.less(in_loader)
    in_ops = rest.common(_covered(events, events.of(OP, RUNTIME), window))
    after = (idle.end - host_end)[~queued & known].sum()
    return {
        IN_OPS: in_ops.length,
        IN_PYTHON: rest.less(in_ops).length,
        IN_WAITS: in_waits.length,
        IN_LOADER: in_loader.length,
        IN_LATENCY: float(after),
        IN_QUEUE: float((idle.end - idle.start)[queued].sum()),
    }


def _launch_ends(events: Events, idle: Stretches) -> NDArray[np.float64]:
    """Of each idle stretch the end of the call that launched the work at its end; not a number if unknown."""
    works = np.nonzero(events.of(KERNEL, COPY, FILL))[0]
    works = works[np.argsort(events.start[works], kind="stable")]
    starts = events.start[works]
    which = np.searchsorted(starts, idle.end, side="left")
    end = np.full(len(idle.end), np.nan)
    calls = np.nonzero(events.of(RUNTIME) & (events.link >= 0))[0]
    if not len(calls) or not len(works):
        return end
    order = np.argsort(events.link[calls], kind="stable")
    calls = calls[order]
    links = events.link[calls]
    valid = which < len(works)
    work = works[np.minimum(which, len(works) - 1)]
    valid &= events.link[work] >= 0
    at = np.minimum(np.searchsorted(links, events.link[work]), len(links) - 1)
    valid &= links[at] == events.link[work]
    end[valid] = events.end[calls[at]][valid]
    return end


# ---------------------------------------------------------------- without


def host_breakdown(events: Events, nesting: Nesting, window: Window) -> tuple[dict[str, float], str]:
    """Seconds by part of the thread that did most, and its name."""
    outermost = events.of(OP) & (nesting.top == np.arange(len(events)))
    by_lane = np.bincount(
        events.lane[outermost].astype(int), (events.end - events.start)[outermost],
        minlength=len(events.table.lanes.texts),
    )  # fmt: skip
    lane = int(by_lane.argmax())
    mine = events.lane == lane
    texts = events.table.names.texts
    loads = np.array([LOADER.search(text) is not None for text in texts], bool)[events.name]
    ops = _covered(events, events.of(OP) & mine & _is_op(events), window)
    loader = _covered(events, mine & loads & ~events.of(STEP), window)
    whole = Stretches(np.array([window.start]), np.array([window.end]))
    in_ops = ops.less(loader).length
    parts = {
        "ops": in_ops,
        "input (DataLoader)": loader.length,
        "Python and framework, not attributed": whole.length - in_ops - loader.length,
    }
    return {name: max(0.0, seconds) / 1e6 for name, seconds in parts.items()}, events.table.lanes.texts[lane]


def _is_op(events: Events) -> NDArray[np.bool_]:
    """Ops, and not what only surrounds them."""
    names = np.array([is_torch_op(text) for text in events.table.names.texts], bool)
    return names[events.name]
