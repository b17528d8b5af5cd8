"""One sum in several orders: what rounding does, and what a derived bound says that it may do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelworks.experiment.plan import Findings, Plan, Say, computed_point
from kernelworks.records.experiment import Axis, Series

__all__ = ["ORDERS", "PLAN"]

LENGTHS = tuple(4**power for power in range(2, 11))  # to a million
UNIT = 2.0**-24  # the largest relative error of one rounding to float32
LANES = 16
LEAST = 0.01  # roundings, at which an exact sum is drawn


def in_order(x: Any) -> float:
    """One running sum."""
    import numpy as np

    return float(np.add.accumulate(x)[-1])


def in_lanes(x: Any) -> float:
    """Sixteen running sums, as a vector register has them, and then their sum."""
    import numpy as np

    return in_order(np.add.accumulate(x.reshape(-1, LANES), axis=0)[-1])


def in_pairs(x: Any) -> float:
    """Neighbours, then neighbouring sums, as a tree of threads does it."""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return float(x[0])


# Name, the sum, and how many roundings one element can go through.
ORDERS: tuple[tuple[str, Callable[[Any], float], Callable[[int], float]], ...] = (
    ("one after the other", in_order, lambda n: n - 1),
    ("16 lanes", in_lanes, lambda n: n / LANES + LANES - 2),
    ("pairs", in_pairs, math.log2),
)


def _run(say: Say, rough: bool) -> Findings:
    import numpy as np

    draws = np.random.default_rng(2)
    x = draws.random(LENGTHS[-1], np.float32)
    errors: dict[str, list[float]] = {name: [] for name, _, _ in ORDERS}
    for length in LENGTHS:
        exact = math.fsum(x[:length].tolist())
        for name, add, _ in ORDERS:
            errors[name].append(abs(add(x[:length]) - exact) / (UNIT * exact))
    series = [
        Series(name, tuple(computed_point(n, max(e, LEAST)) for n, e in zip(LENGTHS, errors[name], strict=True)))
        for name, _, _ in ORDERS
    ]
    series += [
        Series(f"bound of {name}", tuple(computed_point(n, chain(n)) for n in LENGTHS), is_limit=True)
        for name, _, chain in ORDERS
    ]
    worst = {name: errors[name][-1] for name, _, _ in ORDERS}
    return Findings(
        Axis("numbers added", "", logarithmic=True), Axis("error, in roundings of the result", "", logarithmic=True),
        tuple(series),
        (
            *(f"a million, {name}: {worst[name]:.3g} roundings off, {chain(LENGTHS[-1]):.3g} allowed"
              for name, _, chain in ORDERS),
            "the order alone changes the error: all three add the same float32 numbers in float32",
            "bounds count the longest chain of roundings that an element goes through; errors of both signs "
            "cancel, so a "
            "long chain stays far below its bound",
        ),
        "",
        (f"uniform numbers from 0 to 1; a sum that is exact is drawn at {LEAST:g}",),
    )  # fmt: skip


PLAN = Plan(
    name="summation",
    question="Does the order of a sum change how wrong it is?",
    expected="An element of a running sum is rounded once for each that follows; of a tree, once for each "
    "level. So the bound "
    "grows with n, n / 16 or log n. No error may be above its bound.",
    page="numerics.md",
    seconds=1,
    is_timed=False,
    run=_run,
)
