"""The dual of a support vector machine by decomposition: a working set at a time, K never stored.

``min 1/2 a^T Q a - sum a`` with ``0 <= a_i <= C_i`` and ``y^T a = 0``, ``Q_ij = y_i y_j k(x_i, x_j)``. Each round picks
the points that violate the optimality conditions most, solves their part of the problem (``block_dual.py``), and moves
the gradient of all points by one product with K. The pair that violates most is always among them, so that the rounds
converge (Lin, On the convergence of the decomposition method for support vector machines, 2001). Wen et al.,
ThunderSVM, 2018.

What ends it: a violation of at most ``tol``; one that roundings alone can make, if it no longer falls; ``ROUNDS``
rounds or ``PAIRS`` pairs of points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kernelworks.estimators.block_dual import solve_block

__all__ = ["Dual", "KernelColumns", "solve_dual"]

Vector = np.ndarray[Any, Any]
SIZE = 256  # points of a working set
ROUNDS = 10_000  # where max_iter is -1
PAIRS = 1_000_000  # or as many for each point as LIBSVM allows, 100
STALLED_ROUNDS = 10  # rounds without a smaller violation, where it is no more than roundings can make
DRIFT = 0.125  # of tol: by how much f may have been off before it is made anew


class KernelColumns(Protocol):
    """A kernel's matrix as rounds ask for it."""

    def block(self, at: Vector) -> Vector:
        """K of the points ``at`` among themselves, float64."""

    def product(self, at: Vector, weights: Vector, error: float) -> tuple[Vector, float]:
        """``K[:, at] @ weights``, and by how much it may be off: at most ``error``, or what float64 rounds."""


@dataclass(frozen=True)
class Dual:
    """What was found: multipliers, the intercept, rounds, by how much the conditions are still violated, and how much
    of that roundings can make."""

    multipliers: Vector
    intercept: float
    rounds: int
    violation: float
    floor: float


def _pick(f: Vector, b: Vector, low: Vector, high: Vector, size: int) -> tuple[Vector, float, float]:
    """The points that violate most, a quarter from each side, and of those between their limits as many as there is
    room for, for without them the others could not move far; and both sides' extremes."""
    up, down = np.where(b < high, -f, -np.inf), np.where(b > low, -f, np.inf)
    if len(f) <= size:
        return np.arange(len(f)), float(up.max()), float(down.min())
    quarter = size // 4
    tops, bottoms = np.argpartition(-up, quarter)[:quarter], np.argpartition(down, quarter)[:quarter]
    picked = np.union1d(tops[np.isfinite(up[tops])], bottoms[np.isfinite(down[bottoms])])
    free = np.setdiff1d(np.flatnonzero((b > low) & (b < high)), picked, assume_unique=True)
    room = size - len(picked)
    if len(free) > room:
        apart = np.abs(f[free] + (up.max() + down.min()) / 2)
        free = free[np.argpartition(-apart, room)[:room]]
    return np.union1d(picked, free), float(up.max()), float(down.min())


class _Gradient:
    """``f = K b - y``, moved by what each round changes, and made anew where that may have added up to much."""

    def __init__(self, columns: KernelColumns, y: Vector, tol: float) -> None:
        self.columns, self.y, self.allowed = columns, y, DRIFT * tol
        self.f, self.error, self.made_anew = -y.astype(np.float64), 0.0, 0.0

    def move(self, at: Vector, change: Vector) -> None:
        moved, error = self.columns.product(at, change, self.allowed / 16)
        self.f += moved
        self.error += error

    def renew(self, b: Vector) -> bool:
        """Whether f was made anew: if it is not as near as it can be already, and may be off by more than allowed."""
        if self.error <= max(self.allowed, 2.0 * self.made_anew):
            return False
        support = np.flatnonzero(b)
        moved, self.error = self.columns.product(support, b[support], self.allowed)
        self.f, self.made_anew = moved - self.y, self.error
        return True


def solve_dual(columns: KernelColumns, y: Vector, c: Vector, *, tol: float, max_iter: int) -> Dual:
    """y is -1 or 1, c the largest multipliers. ``max_iter`` rounds at most, -1 for ``ROUNDS``."""
    low, high = np.minimum(0.0, y * c), np.maximum(0.0, y * c)
    b, gradient = np.zeros(len(y)), _Gradient(columns, y, tol)
    rounds, best, stalled = 0, np.inf, 0
    most, left = ROUNDS if max_iter < 0 else max_iter, max(PAIRS, 100 * len(y))
    while True:
        picked, top, bottom = _pick(gradient.f, b, low, high, SIZE)
        violation = top - bottom
        stalled = 0 if violation < best else stalled + 1
        best = min(best, violation)
        # Before it is believed that this is the end, f is what b makes of it.
        if violation <= tol and gradient.renew(b):
            continue
        floor = 2.0 * gradient.error
        if violation <= tol or rounds == most or left <= 0 or (violation <= floor and stalled >= STALLED_ROUNDS):
            break
        within = tol / 2 if len(picked) == len(y) else max(tol / 2, 0.1 * violation)
        block, f = columns.block(picked), gradient.f[picked]
        moved, pairs = solve_block(block, b[picked], low[picked], high[picked], f, within)
        left -= pairs
        change = moved - b[picked]
        some = np.flatnonzero(change)
        if not len(some):
            if gradient.renew(b):
                continue
            break
        b[picked] = moved
        gradient.move(picked[some], change[some])
        gradient.renew(b)
        rounds += 1
    free = (b > low) & (b < high)
    intercept = -float(gradient.f[free].mean()) if free.any() else (top + bottom) / 2
    return Dual(np.abs(b), intercept if np.isfinite(intercept) else 0.0, rounds, violation, floor)
