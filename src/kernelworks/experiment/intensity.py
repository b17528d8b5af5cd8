"""The roofline, walked along: the same bytes, more and more arithmetic for each."""

from __future__ import annotations

import functools

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point, timed_point, timed_variants
from kernelworks.experiment.walking import beyond_caches, walks
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)  # multiply-adds for each float
FLOAT_BYTES, NEAR_BYTES, NEAR_PASSES, FAR_BYTES = 4, 8192, 64, 64 << 20


def _run(say: Say, rough: bool) -> Findings:
    import torch

    functions, size = walks(), min(FAR_BYTES, beyond_caches())
    x, out, bits = torch.ones(size // FLOAT_BYTES), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    calls = {str(count): functools.partial(functions.multiply_adds, out, x, size, count, 1) for count in COUNTS}
    calls["read"] = functools.partial(functions.walk, bits, x, size, 1)
    calls["near"] = functools.partial(functions.multiply_adds, out, x, NEAR_BYTES, COUNTS[-1], NEAR_PASSES)
    times, noise = timed_variants(calls, say, rough=rough)
    bandwidth = timed_point(0, times["read"], size).value
    peak = timed_point(0, times["near"], NEAR_BYTES / FLOAT_BYTES * 2 * COUNTS[-1] * NEAR_PASSES).value
    places = {count: 2 * count / FLOAT_BYTES for count in COUNTS}
    points = tuple(timed_point(places[c], times[str(c)], size / FLOAT_BYTES * 2 * c) for c in COUNTS)
    roof = tuple(computed_point(at, min(peak, bandwidth * at)) for at in places.values())
    ridge = peak / bandwidth
    first, last = points[0], points[-1]
    return Findings(
        Axis("flop for each byte read", "", logarithmic=True), Axis("arithmetic", "GFLOP/s", logarithmic=True),
        (Series("measured", points), Series("roofline", roof, is_limit=True)),
        (
            f"the slope is {bandwidth:.3g} GB/s, the roof {peak:.3g} GFLOP/s, both measured in the same turns; they "
            f"meet at {ridge:.3g} flop a byte",
            f"at {first.x:g} flop a byte {first.value / roof[0].value:.0%} of the roofline, at {last.x:g} "
            f"{last.value / roof[-1].value:.0%}",
            f"from {first.x:g} to {last.x:g} flop a byte the work grew {last.x / first.x:.0f} times and the time "
            f"{times[str(COUNTS[-1])].median / times[str(COUNTS[0])].median:.2g} times",
        ),
        noise,
        (f"one thread, {size >> 20} MiB of floats",),
    )  # fmt: skip


PLAN = Plan(
    name="intensity",
    question="How much arithmetic is free while a program waits for memory?",
    expected="Left of the ridge point the time does not change while the work doubles, so the rate doubles with "
    "it. Right "
    "of it the rate is the peak, and the time doubles with the work.",
    page="roofline.md",
    seconds=5,
    is_timed=True,
    run=_run,
)
