"""Memory moves whole lines: what a float costs that lies alone in its line."""

from __future__ import annotations

import functools

from kernelworks.experiment.plan import Findings, Plan, Say, timed_point, timed_variants
from kernelworks.experiment.walking import LINE_BYTES, beyond_caches, walks
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

STRIDES = (1, 2, 4, 8, 16, 32, 64)  # floats
FLOAT_BYTES = 4


def _run(say: Say, rough: bool) -> Findings:
    import torch

    functions, size = walks(), beyond_caches()
    x, out = torch.ones(size // FLOAT_BYTES), torch.zeros(1, dtype=torch.int32)
    calls = {str(stride): functools.partial(functions.strided_read, out, x, stride, 1) for stride in STRIDES}
    times, noise = timed_variants(calls, say, rough=rough)
    used, moved = [], []
    for stride in STRIDES:
        floats = size // FLOAT_BYTES // stride
        lines = min(floats, size // LINE_BYTES)
        used.append(timed_point(stride, times[str(stride)], floats * FLOAT_BYTES))
        moved.append(timed_point(stride, times[str(stride)], lines * LINE_BYTES))
    whole, alone = used[0], used[STRIDES.index(LINE_BYTES // FLOAT_BYTES)]
    lost = whole.value / alone.value
    return Findings(
        Axis("floats from one that is read to the next", "", logarithmic=True),
        Axis("read from memory", "GB/s", logarithmic=True),
        (Series("floats used", tuple(used)), Series("lines moved", tuple(moved))),
        (
            f"of every float, {whole.value:.3g} GB/s arrive that are used; of every 16th, {alone.value:.3g} GB/s: "
            f"{lost:.2g} times less",
            "a line holds 16 floats: if reads cost only what is used, there would be no such factor; if lines cost "
            "and nothing else, it would be 16",
        ),
        noise,
        (f"one thread reads {size >> 20} MiB, more than the caches hold",),
    )


PLAN = Plan(
    name="strides",
    question="What does a float cost that lies alone in its cache line?",
    expected="Memory moves lines of 64 bytes. Up to a stride of 16 floats each doubling halves what is useful of a "
    "line, so the rate of floats used falls to a sixteenth, and the rate of lines moved stays as it is.",
    page="memory-hierarchy.md",
    seconds=4,
    is_timed=True,
    run=_run,
)
