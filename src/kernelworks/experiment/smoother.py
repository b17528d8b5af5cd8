"""The word's third and fourth sense are one: attention is a weighted mean whose weights are a kernel of similarity."""

from __future__ import annotations

import math

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

POINTS, PLACES = 96, 12
LENGTH_SCALE, NOISE = 0.35, 0.25


def _run(say: Say, rough: bool) -> Findings:
    import torch
    from torch.nn import functional

    import kernelworks

    draws = torch.Generator().manual_seed(5)
    angles = torch.rand(POINTS, generator=draws) * 2 * math.pi
    places = torch.arange(PLACES) * 2 * math.pi / PLACES
    curve = 2 + torch.sin(places)
    seen = 2 + torch.sin(angles) + NOISE * torch.randn(POINTS, generator=draws)
    # On a circle all points have one length, so |q - k|^2 = 2 - 2 q . k, and softmax loses the 2.
    keys, queries = (torch.stack([torch.cos(a), torch.sin(a)], 1) for a in (angles, places))
    values = seen.unsqueeze(1).repeat(1, 2)
    sums = kernelworks.kernel_matmul(queries, keys, torch.stack([seen, torch.ones(POINTS)], 1), LENGTH_SCALE)
    similarity = sums[:, 0] / sums[:, 1]
    q, k, v = (t[None, None] for t in (queries, keys, values))
    scale = 1 / LENGTH_SCALE**2
    attended = functional.scaled_dot_product_attention(q, k, v, scale=scale)[0, 0, :, 0]
    smoothed = kernelworks.kernel_attention(q, k, v, smoother="rbf", length_scale=LENGTH_SCALE)[0, 0, :, 0]
    degrees = [360 * i / PLACES for i in range(PLACES)]

    def series(name: str, found: torch.Tensor, *, is_limit: bool = False) -> Series:
        points = tuple(computed_point(x, y) for x, y in zip(degrees, found.tolist(), strict=True))
        return Series(name, points, is_limit)

    apart = max(float((similarity - other).abs().max()) for other in (attended, smoothed))
    off = float((similarity - curve).square().mean().sqrt())
    return Findings(
        Axis("where it is asked", "degrees"), Axis("answer"),
        (
            series("kernel_matmul: sum of k v over sum of k", similarity),
            series("torch's scaled_dot_product_attention", attended),
            series("curve that the data were drawn from", curve, is_limit=True),
        ),
        (
            f"the kernel's mean, attention, and kernel_attention with the Gaussian differ by {apart:.1g} at most",
            f"the data have a noise of {NOISE:g}, the answers are {off:.2g} off the curve: neighbours were averaged",
        ),
        "",
        (f"{POINTS} noisy values on a circle; the Gaussian's length scale is {LENGTH_SCALE:g}, softmax's scale 1 over "
         "its square",),
    )  # fmt: skip


PLAN = Plan(
    name="smoother",
    question="Is attention a mean of values, weighted by a kernel of similarity?",
    expected="For keys of one length the softmax of q . k / l^2 is the Gaussian kernel of q - k, divided by its "
    "sum: three "
    "ways to compute it must agree up to rounding.",
    page="what-a-kernel-is.md",
    seconds=2,
    is_timed=False,
    run=_run,
)
