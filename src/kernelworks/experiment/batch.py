"""Decoding several tokens at once: weights are read once for all of them."""

from __future__ import annotations

import functools

from kernelworks.experiment.plan import Findings, Plan, Say, one_thread, timed_variants
from kernelworks.records.experiment import Axis, Point, Series

__all__ = ["PLAN"]

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
FEATURES = 4096  # 64 MiB of float32 weights


def _run(say: Say, rough: bool) -> Findings:
    import torch

    weight = torch.ones(FEATURES, FEATURES)
    calls = {}
    for batch in BATCHES:
        x = torch.ones(batch, FEATURES)
        calls[str(batch)] = functools.partial(torch.mm, x, weight.t(), out=torch.empty(batch, FEATURES))
    with torch.inference_mode(), one_thread():
        times, noise = timed_variants(calls, say, rough=rough)
    found = [(batch, times[str(batch)]) for batch in BATCHES]
    points = tuple(Point(b, t.median / b, t.low / b, t.high / b) for b, t in found)
    shared = tuple(Point(b, points[0].value / b, points[0].value / b, points[0].value / b) for b in BATCHES)
    last, bytes_ = points[-1], 4.0 * FEATURES * FEATURES
    return Findings(
        Axis("tokens in one call", "", logarithmic=True), Axis("a token", "s", logarithmic=True),
        (Series("measured", points), Series("if only weights cost", shared, is_limit=True)),
        (
            f"one token alone reads {bytes_ / points[0].value / 1e9:.3g} GB/s of weights",
            f"of {BATCHES[-1]} tokens each takes {points[0].value / last.value:.2g} times less than one alone",
            f"at {BATCHES[-1]} tokens the call does {2 * FEATURES * FEATURES / last.value / 1e9:.3g} GFLOP/s",
        ),
        noise,
        (f"a matrix of {FEATURES} x {FEATURES} float32 weights, one thread",),
    )  # fmt: skip


PLAN = Plan(
    name="batch",
    question="What does one more token cost that is decoded with others?",
    expected="A token alone is bound by reading the weights. Tokens together share that, so a token's time "
    "halves with each "
    "doubling, until the arithmetic fills the time; from there on it stays.",
    page="three-regimes.md",
    seconds=6,
    is_timed=True,
    run=_run,
)
