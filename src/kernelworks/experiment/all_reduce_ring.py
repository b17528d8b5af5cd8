"""A sum over ranks: what the busiest one sends, through one rank and round a ring."""

from __future__ import annotations

from typing import Any

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["PLAN", "sum_at_one_rank", "sum_round_a_ring"]

RANKS = (2, 3, 4, 8, 16, 32, 64)
ELEMENTS = 64 * 9 * 10


def sum_at_one_rank(buffers: list[Any]) -> tuple[list[Any], list[int]]:
    """Rank 0 gets every buffer and sends the sum back. The results, and the elements that each rank sent."""
    total, sent = buffers[0].copy(), [0] * len(buffers)
    for rank in range(1, len(buffers)):
        total += buffers[rank]
        sent[rank] += buffers[rank].size
    for _ in range(1, len(buffers)):
        sent[0] += total.size
    return [total.copy() for _ in buffers], sent


def sum_round_a_ring(buffers: list[Any]) -> tuple[list[Any], list[int]]:
    """Each rank passes one piece on to the next, adding as it comes (reduce-scatter), then passes the sums on
    (all-gather): 2 (n - 1) steps."""
    import numpy as np

    count = len(buffers)
    pieces, sent = [np.array_split(buffer.copy(), count) for buffer in buffers], [0] * count
    for adds in (True, False):
        for step in range(count - 1):
            moving = [(rank, (rank - step + (0 if adds else 1)) % count) for rank in range(count)]
            on_the_way = [pieces[rank][piece].copy() for rank, piece in moving]
            for (rank, piece), data in zip(moving, on_the_way, strict=True):
                sent[rank] += data.size
                there = pieces[(rank + 1) % count]
                there[piece] = there[piece] + data if adds else data
    return [np.concatenate(piece) for piece in pieces], sent


def _run(say: Say, rough: bool) -> Findings:
    import numpy as np

    draws = np.random.default_rng(1)
    busiest: dict[str, list[float]] = {"one": [], "ring": []}
    for ranks in RANKS:
        buffers = [draws.integers(0, 99, ELEMENTS) for _ in range(ranks)]
        exact = np.sum(buffers, axis=0)
        for name, way in (("one", sum_at_one_rank), ("ring", sum_round_a_ring)):
            results, sent = way(buffers)
            if not all((result == exact).all() for result in results):
                raise RuntimeError(f"the sum of {ranks} ranks is wrong by way of {name}")
            busiest[name].append(max(sent) / ELEMENTS)
    limit = [2 * (ranks - 1) / ranks for ranks in RANKS]

    def series(name: str, found: list[float], *, is_limit: bool = False) -> Series:
        return Series(name, tuple(computed_point(r, y) for r, y in zip(RANKS, found, strict=True)), is_limit)

    return Findings(
        Axis("ranks", "", logarithmic=True), Axis("buffers that the busiest rank sends", "", logarithmic=True),
        (series("through one rank", busiest["one"]), series("round a ring", busiest["ring"]),
         series("least: 2 (n - 1) / n", limit, is_limit=True)),
        (
            f"of {RANKS[-1]} ranks the one in the middle sends {busiest['one'][-1]:.0f} buffers, a rank of the ring "
            f"{busiest['ring'][-1]:.3g}: never two, however many ranks",
            f"the ring takes {2 * (RANKS[-1] - 1)} steps one after the other where the other way takes 2: for small "
            "buffers steps cost, for large ones bytes",
            "every result was compared with the sum, element by element",
        ),
    )  # fmt: skip


PLAN = Plan(
    name="ring",
    question="How many bytes must a rank send for a sum over all ranks?",
    expected="Through one rank it grows with the number of ranks. Round a ring each rank sends each piece of "
    "its buffer twice "
    "at most: less than two buffers, whatever the number.",
    page="collectives.md",
    seconds=1,
    is_timed=False,
    run=_run,
)
