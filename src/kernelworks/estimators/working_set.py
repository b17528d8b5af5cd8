"""The dual of a support vector machine by decomposition: a working set at a time, K never stored.

``min 1/2 a^T Q a - sum a`` with ``0 <= a_i <= C_i`` and ``y^T a = 0``, ``Q_ij = y_i y_j k(x_i, x_j)``. Each round picks
the points that violate the optimality conditions most, solves their part of the problem with their block of K (by
sequential minimal optimization with second-order selection), and moves the gradient of all points by one product with
K. Fan, Chen and Lin, Working Set Selection Using Second Order Information, 2005; Wen et al., ThunderSVM, 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Dual", "solve_dual"]

Vector = np.ndarray[Any, Any]
TINY = 1e-12  # the least curvature of a pair
SIZE = 256  # points of a working set
INNER = 20_000  # pairs that a round solves at most


@dataclass(frozen=True)
class Dual:
    """What was found: multipliers, the intercept, rounds, and by how much the conditions are still violated."""

    multipliers: Vector
    intercept: float
    rounds: int
    violation: float


def _sides(y: Vector, a: Vector, c: Vector) -> tuple[Vector, Vector]:
    """Who may move up (along y) and who down."""
    up = np.where(y > 0, a < c, a > 0)
    down = np.where(y > 0, a > 0, a < c)
    return up, down


def _solve_block(k: Vector, y: Vector, a: Vector, c: Vector, f: Vector, tol: float) -> Vector:
    """The multipliers of a working set, the others fixed: pairs of largest gain until their violation is under tol.
    ``f`` is y times the gradient: ``f_i = sum_j y_j a_j k_ij - y_i``."""
    a, f = a.copy(), f.copy()
    diagonal = np.diagonal(k)
    for _ in range(INNER):
        up, down = _sides(y, a, c)
        highest = np.where(up, -f, -np.inf)
        i = int(highest.argmax())
        gap = highest[i] + f  # of moving i up and j down
        wrong = down & (gap > 0)
        if not wrong.any() or gap[wrong].max() <= tol:
            break
        curvature = np.maximum(diagonal[i] + diagonal - 2.0 * k[i], TINY)
        j = int(np.where(wrong, gap * gap / curvature, -1.0).argmax())
        step = gap[j] / curvature[j]
        step = min(step, c[i] - a[i] if y[i] > 0 else a[i], a[j] if y[j] > 0 else c[j] - a[j])
        a[i] = min(max(a[i] + y[i] * step, 0.0), c[i])
        a[j] = min(max(a[j] - y[j] * step, 0.0), c[j])
        f += step * (k[i] - k[j])
    return a


def _pick(f: Vector, y: Vector, a: Vector, c: Vector, size: int) -> tuple[Vector, float, float]:
    """The points that violate most, half from each side, and both sides' extremes."""
    up, down = _sides(y, a, c)
    high, low = np.where(up, -f, -np.inf), np.where(down, -f, np.inf)
    half = max(size // 2, 1)
    tops = np.argpartition(-high, min(half, len(f)) - 1)[:half]
    bottoms = np.argpartition(low, min(half, len(f)) - 1)[:half]
    picked = np.union1d(tops[np.isfinite(high[tops])], bottoms[np.isfinite(low[bottoms])])
    return picked, float(high.max()), float(low.min())


def solve_dual(
    block: Callable[[Vector], Vector], product: Callable[[Vector, Vector], Vector], y: Vector, c: Vector, *,
    tol: float, max_iter: int,
) -> Dual:  # fmt: skip
    """``block(i)`` is K of the points i among themselves, ``product(i, w)`` is ``K[:, i] @ w``; y is -1 or 1, c the
    largest multipliers. ``max_iter`` rounds at most, -1 for as many as it takes."""
    a, f = np.zeros(len(y)), -y.astype(np.float64)
    rounds, before = 0, np.inf
    stuck = 0
    while True:
        picked, high, low = _pick(f, y, a, c, SIZE)
        violation = high - low
        stuck = stuck + 1 if violation >= before else 0
        before = min(before, violation)
        if violation <= tol or rounds == max_iter or stuck >= 1000:
            break
        moved = _solve_block(block(picked), y[picked], a[picked], c[picked], f[picked], max(tol / 2, 0.1 * violation))
        change = moved - a[picked]
        some = change != 0
        if not some.any():
            break
        a[picked] = moved
        f += product(picked[some], (change * y[picked])[some])
        rounds += 1
        if rounds % 100 == 0:  # what was added up has drifted from what is
            support = np.flatnonzero(a)
            f = product(support, (a * y)[support]) - y
    free = (a > 0) & (a < c)
    intercept = -float(f[free].mean()) if free.any() else (high + low) / 2
    return Dual(a, intercept if np.isfinite(intercept) else 0.0, rounds, violation)
