"""A load that must wait for the one before it: what memory costs if nothing is in flight beside it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kernelworks.experiment.plan import Findings, Plan, Say, timed_variants
from kernelworks.experiment.walking import LINE_BYTES, doubled_sizes, walks
from kernelworks.records.experiment import Axis, Point, Series

if TYPE_CHECKING:
    import torch

__all__ = ["PLAN"]

LEAST, STEPS = 4096, 1 << 15
INDEX_BYTES = 8


def chain(size: int) -> torch.Tensor:
    """Indices by which all lines of ``size`` bytes are visited, each once, in an order that no prefetcher knows."""
    import torch

    apart = LINE_BYTES // INDEX_BYTES
    order = torch.randperm(size // LINE_BYTES, generator=torch.Generator().manual_seed(3)) * apart
    order = order.roll(-int((order == 0).nonzero().item()))  # the walk begins at index 0
    following = torch.zeros(size // INDEX_BYTES, dtype=torch.int64)
    following[order] = order.roll(-1)
    return following


def _run(say: Say, rough: bool) -> Findings:
    import torch

    functions, out = walks(), torch.zeros(1, dtype=torch.int64)
    sizes = doubled_sizes(LEAST)
    calls = {str(size): functools.partial(functions.chase, out, chain(size), STEPS) for size in sizes}
    times, noise = timed_variants(calls, say, rough=rough)
    points = [
        Point(size, found.median / STEPS, found.low / STEPS, found.high / STEPS)
        for size, found in ((size, times[str(size)]) for size in sizes)
    ]
    near, far = points[0].value, points[-1].value
    flight = LINE_BYTES / far / 1e9
    return Findings(
        Axis("working set", "B", logarithmic=True), Axis("a load", "s", logarithmic=True),
        (Series("each load waits for the last", tuple(points)),),
        (
            f"nearest level {1e9 * near:.3g} ns, memory {1e9 * far:.3g} ns: {far / near:.2g} times",
            f"one line each {1e9 * far:.3g} ns is {flight:.2g} GB/s; what `working-set` reads beyond that comes from "
            "loads that wait at the same time",
        ),
        noise,
    )  # fmt: skip


PLAN = Plan(
    name="latency",
    question="How long does one load take if nothing else is under way?",
    expected="About a nanosecond from the nearest cache and about a hundred from memory. The rate of such a chain is a "
    "small part of what independent loads reach.",
    page="memory-hierarchy.md",
    seconds=7,
    is_timed=True,
    run=_run,
)
