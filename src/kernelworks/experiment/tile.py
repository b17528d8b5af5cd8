"""A tile of a matrix product in registers: what each number that is loaded is used for."""

from __future__ import annotations

import functools

from kernelworks.experiment.plan import Findings, Plan, Say, timed_point, timed_variants
from kernelworks.experiment.walking import tiles
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN"]

SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (6, 2), (8, 2), (4, 4), (6, 4), (8, 4))  # rows, vectors
K, PASSES = 48, 256
MOST_ROWS, MOST_VECTORS, MOST_LANES = 8, 4, 16


def loads_for_each_multiply_add(rows: int, vectors: int) -> float:
    """Numbers and vectors that a step loads, over the multiply-adds that it does."""
    return (rows + vectors) / (rows * vectors)


def _run(say: Say, rough: bool) -> Findings:
    import torch

    functions, out = tiles(), torch.zeros(1)
    a, b = torch.zeros(K, MOST_ROWS), torch.zeros(K, MOST_VECTORS * MOST_LANES)
    functions.lanes(out)
    lanes = int(out.item())
    calls = {f"{m} x {n}": functools.partial(functions.tile, out, a, b, K, m, n, PASSES) for m, n in SHAPES}
    times, noise = timed_variants(calls, say, rough=rough)
    points = [
        timed_point(index, times[f"{m} x {n}"], 2.0 * K * PASSES * m * n * lanes, f"{m} x {n}")
        for index, (m, n) in enumerate(SHAPES, 1)
    ]
    best, least = max(points, key=lambda point: point.value), points[0]
    rows, vectors = SHAPES[int(best.x) - 1]
    last = points[-1]
    held = last.label, SHAPES[-1][0] * SHAPES[-1][1]
    return Findings(
        Axis("rows x vectors of the tile"), Axis("arithmetic", "GFLOP/s"), (Series("one thread", tuple(points)),),
        (
            f"1 x 1 loads {loads_for_each_multiply_add(1, 1):g} times for each multiply-add and waits for each sum: "
            f"{least.value:.3g} GFLOP/s",
            f"best is {best.label}, {loads_for_each_multiply_add(rows, vectors):.2g} loads for each: "
            f"{best.value:.3g} GFLOP/s, {best.value / least.value:.2g} times as much",
            f"{held[0]} needs {held[1]} registers for its sums alone and reaches {last.value:.3g}",
        ),
        noise,
        (f"vectors of {lanes} floats; a and b lie in the nearest cache, so registers are all that changes",),
    )  # fmt: skip


PLAN = Plan(
    name="tile",
    question="How large should the tile be that a matrix product keeps in registers?",
    expected="A tile of m rows and n vectors does m n multiply-adds with m + n loads: larger is better, until its sums "
    "do not fit into the registers (16, or 32 with AVX-512) and are spilled to the stack.",
    page="tile-by-hand.md",
    seconds=5,
    is_timed=True,
    run=_run,
)
