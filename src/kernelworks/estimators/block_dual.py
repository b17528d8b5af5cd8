"""The part of a support vector machine's dual that a working set has, its block of K stored.

With ``b_i = y_i a_i``: ``min 1/2 b^T K b - y^T b``, ``low_i <= b_i <= high_i``, ``sum b`` as it is. Two kinds of steps
take turns. A pair of points is chosen by second-order information and solved exactly (Fan, Chen and Lin, Working Set
Selection Using Second Order Information, 2005): that alone converges, but where K's numbers are of very different
sizes only after millions of pairs. So all points between their limits are at times moved together, by Newton's method
with the limits met one after the other (Scheinberg, An Efficient Implementation of an Active Set Method for SVMs,
2006). Each step lowers the objective, so that pairs still converge with others between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["solve_block"]

Vector = np.ndarray[Any, Any]
TINY = 1e-12  # the least curvature of a pair, as a part of the sum of its numbers on K's diagonal
LEAST_CURVATURE = 1e-200  # and of points whose numbers are 0
PAIRS = 5_000  # of a call at most
EPS = float(np.finfo(np.float64).eps)


def solve_block(k: Vector, b: Vector, low: Vector, high: Vector, f: Vector, tol: float) -> tuple[Vector, int]:
    """The signed multipliers of a working set, the others fixed, until their violation is at most ``tol``, until
    float64 can move none of them, or after ``PAIRS`` pairs; and how many were moved. ``f`` is ``K b - y``, with the b
    of all points."""
    b, f = b.copy(), f.copy()
    diagonal = np.diagonal(k).copy()
    turn = 2 * len(b)  # pairs, then all together: pairs find quickly which points are at their limits
    for done in range(1, PAIRS + 1):
        if not _move_pair(k, diagonal, b, low, high, f, tol):
            break
        if done == turn:
            turn += max(len(b) // 4, 16)
            _move_free(k, diagonal, b, low, high, f)
    return b, done


def _move_pair(k: Vector, diagonal: Vector, b: Vector, low: Vector, high: Vector, f: Vector, tol: float) -> bool:
    """The point that is to rise most, and of those that fall with it the one of largest gain; False where no pair
    violates by more than ``tol``, or none can be moved."""
    rising = np.where(b < high, -f, -np.inf)
    i = int(rising.argmax())
    gap = np.where(b > low, rising[i] + f, -np.inf)
    if not gap.max() > tol:
        return False
    sums = diagonal[i] + diagonal
    curvature = np.maximum(sums - 2.0 * k[i], TINY * sums + LEAST_CURVATURE)
    j = int(np.where(gap > 0, gap * gap / curvature, -1.0).argmax())
    step = min(gap[j] / curvature[j], high[i] - b[i], b[j] - low[j])
    was = b[i], b[j]
    # A point whose limit ends the step lies on it afterwards: a rounding short of it, it would be chosen for ever.
    b[i] = high[i] if step == high[i] - b[i] else min(b[i] + step, high[i])
    b[j] = low[j] if step == b[j] - low[j] else max(b[j] - step, low[j])
    if (b[i], b[j]) == was:
        return False
    f += step * (k[i] - k[j])
    return True


def _move_free(k: Vector, diagonal: Vector, b: Vector, low: Vector, high: Vector, f: Vector) -> None:
    """Newton steps of the points between their limits, with ``sum b`` kept: one to the minimum, or to the first limit
    that is met, whose point then stays there."""
    free = np.flatnonzero((b > low) & (b < high))
    while len(free) > 1:
        direction = _newton(k, diagonal, f, free)
        if direction is None:
            return
        slope, image = float(f[free] @ direction), k[:, free] @ direction
        if not slope < 0.0:
            return
        curvature = float(direction @ image[free])
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(direction > 0, (high - b)[free] / direction, (low - b)[free] / direction)
        room[direction == 0] = np.inf
        first = int(room.argmin())
        step = -slope / curvature if curvature > 0.0 else np.inf
        meets = room[first] <= step
        step = min(step, float(room[first]))
        if not np.isfinite(step):
            return
        b[free] = np.clip(b[free] + step * direction, low[free], high[free])
        f += step * image
        if not meets:
            return
        met = free[first]
        b[met] = high[met] if direction[first] > 0 else low[met]
        free = free[(b[free] > low[free]) & (b[free] < high[free])]


def _newton(k: Vector, diagonal: Vector, f: Vector, free: Vector) -> Vector | None:
    """The direction d of ``K_FF d + lambda 1 = -f_F`` with ``sum d = 0``. K is scaled to a diagonal of 1 and given a
    ridge of what rounding may have taken of its eigenvalues: along what K does not see the step is long, to a limit."""
    scale = 1.0 / np.sqrt(np.maximum(diagonal[free], TINY * diagonal.max() + LEAST_CURVATURE))
    scaled = k[np.ix_(free, free)] * scale[:, None] * scale
    scaled[np.diag_indices(len(free))] += 4.0 * EPS * len(free)
    factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(scaled))
    if failed:
        return None
    asked = torch.from_numpy(np.stack([-f[free] * scale, scale], 1))
    solved = torch.cholesky_solve(asked, factor).numpy() * scale[:, None]
    total = float(solved[:, 1].sum())
    if not total > 0.0:
        return None
    direction: Vector = solved[:, 0] - solved[:, 1] * (float(solved[:, 0].sum()) / total)
    direction -= direction.mean()
    return direction
