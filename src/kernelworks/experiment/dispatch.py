"""What a call of torch costs before it computes anything."""

from __future__ import annotations

import functools

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point, one_thread, timed_variants
from kernelworks.records.experiment import Axis, Point, Series

__all__ = ["PLAN"]

SIZES = tuple(4**power for power in range(12))  # elements, to 4 million


def _run(say: Say, rough: bool) -> Findings:
    import torch

    calls = {}
    for size in SIZES:
        a, b, out = torch.ones(size), torch.ones(size), torch.empty(size)
        calls[str(size)] = functools.partial(torch.add, a, b, out=out)
    with torch.inference_mode(), one_thread():
        times, noise = timed_variants(calls, say, rough=rough)
    points = [Point(size, t.median, t.low, t.high) for size, t in ((s, times[str(s)]) for s in SIZES)]
    floor = points[0].value
    small = [at for at, point in enumerate(points) if point.value <= 2 * floor]
    paid = points[min(len(points) - 1, small[-1] + 1)]
    return Findings(
        Axis("elements of the call", "", logarithmic=True), Axis("a call", "s", logarithmic=True),
        (
            Series("torch.add(a, b, out=c)", tuple(points)),
            Series("one element", tuple(computed_point(p.x, floor) for p in points), is_limit=True),
        ),
        (
            f"a call of one element takes {1e6 * floor:.3g} us, and that is all overhead",
            f"at {paid.x:.0f} elements the work takes as long as the call itself, or longer",
            f"the largest call takes {1e9 * points[-1].value / points[-1].x:.2g} ns an element, the smallest "
            f"{1e9 * floor:.3g} ns",
        ),
        noise,
    )  # fmt: skip


PLAN = Plan(
    name="dispatch",
    question="How small is a call whose time is all overhead?",
    expected="A flat line as long as the call itself costs more than its work, then a line that rises with the "
    "number of "
    "elements. Where they meet, work begins to count.",
    page="three-regimes.md",
    seconds=4,
    is_timed=True,
    run=_run,
)
