"""Which level of memory serves a loop is decided by how much it touches before it comes back."""

from __future__ import annotations

import functools

from kernelworks.experiment.plan import Findings, Plan, Say, timed_point, timed_variants
from kernelworks.experiment.walking import doubled_sizes, walks
from kernelworks.machine import machine
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

LEAST, CALL_BYTES = 4096, 4 << 20


def _run(say: Say, rough: bool) -> Findings:
    import torch

    functions, sizes = walks(), doubled_sizes(LEAST)
    x, out = torch.ones(sizes[-1] // 4), torch.zeros(1, dtype=torch.int32)
    passes = {size: max(1, CALL_BYTES // size) for size in sizes}
    calls = {str(size): functools.partial(functions.walk, out, x, size, passes[size]) for size in sizes}
    times, noise = timed_variants(calls, say, rough=rough)
    points = tuple(timed_point(size, times[str(size)], size * passes[size]) for size in sizes)
    rates = {point.x: point.value for point in points}
    readings = [
        f"{level} ({held >> 10} KiB): {rates[size]:.3g} GB/s over {size >> 10} KiB, half of it"
        for level, held in machine().cache_bytes
        for size in [max(s for s in sizes if s <= max(held // 2, LEAST))]
    ]
    readings.append(f"memory: {rates[sizes[-1]]:.3g} GB/s over {sizes[-1] >> 20} MiB")
    readings.append(f"nearest over farthest: {max(rates.values()) / rates[sizes[-1]]:.2g} times")
    return Findings(
        Axis("working set", "B", logarithmic=True), Axis("read", "GB/s", logarithmic=True),
        (Series("one thread, again and again", points),), tuple(readings), noise,
    )  # fmt: skip


PLAN = Plan(
    name="working-set",
    question="How does the rate of reading fall as a loop touches more bytes?",
    expected="A staircase: flat while a cache holds all that is touched, a step down behind each cache's size, and a "
    "last level that no larger working set lowers.",
    page="memory-hierarchy.md",
    seconds=6,
    is_timed=True,
    run=_run,
)
