"""Softmax in one pass: what is carried from block to block, and how it is mended when the maximum moves."""

from __future__ import annotations

import math

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN", "step_online"]

BLOCKS, BLOCK = 12, 64


def step_online(
    maximum: float, total: float, mean: float, scores: list[float], values: list[float]
) -> tuple[float, float, float]:
    """One block: ``m' = max(m, max s)``, ``l' = l e^(m - m') + sum e^(s - m')``, and the weighted mean so far."""
    higher = max(maximum, *scores)
    kept = total * math.exp(maximum - higher)
    weights = [math.exp(s - higher) for s in scores]
    whole = kept + math.fsum(weights)
    return higher, whole, (kept * mean + math.fsum(w * v for w, v in zip(weights, values, strict=True))) / whole


def _run(say: Say, rough: bool) -> Findings:
    import torch

    draws = torch.Generator().manual_seed(12)
    scores = 3 * torch.randn(BLOCKS * BLOCK, generator=draws, dtype=torch.float64)
    values = torch.randn(BLOCKS * BLOCK, generator=draws, dtype=torch.float64)
    maximum, total, mean = -math.inf, 0.0, 0.0
    kept, whole, moved = [], [], []
    steps = zip(scores.split(BLOCK), values.split(BLOCK), strict=True)
    final = float(scores.max())
    for number, (some, of_values) in enumerate(steps, 1):
        before = maximum
        maximum, total, mean = step_online(maximum, total, mean, some.tolist(), of_values.tolist())
        if number > 1 and maximum > before:
            moved.append(f"{number} (by {maximum - before:.2g}: the sum times {math.exp(before - maximum):.2g})")
        kept.append(computed_point(number, total))
        whole.append(computed_point(number, total * math.exp(maximum - final)))
    exact = torch.softmax(scores, 0) @ values
    off = abs(mean - float(exact)) / abs(float(exact))
    return Findings(
        Axis("blocks read"), Axis("sum of weights"),
        (Series("as it is kept, over its own maximum", tuple(kept)), Series("over the last maximum", tuple(whole))),
        (
            f"a block moved the maximum at step {', '.join(moved)}" if moved else "no block moved the maximum",
            "what is kept may fall, because older weights are measured by a larger maximum; over one maximum it "
            "only grows",
            f"the output is {off:.1g} of itself off the one that reads all scores twice: rounding",
            f"carried from block to block: 2 numbers and a row of the output, whatever the length; scores "
            f"stored: {BLOCK} "
            f"of {BLOCKS * BLOCK}",
        ),
    )  # fmt: skip


PLAN = Plan(
    name="online-softmax",
    question="How can softmax be taken of scores that are never all there?",
    expected="Keep the maximum so far, the sum of weights so far and the weighted mean so far. If a block "
    "brings a larger "
    "maximum, the older sum is scaled down. In the end it is the softmax of all.",
    page="attention.md",
    seconds=1,
    is_timed=False,
    run=_run,
)
