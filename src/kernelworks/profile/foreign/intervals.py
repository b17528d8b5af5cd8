"""Stretches of time as sorted arrays of starts and ends that do not overlap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stretches", "union"]


class Stretches(NamedTuple):
    start: NDArray[np.float64]
    end: NDArray[np.float64]

    @property
    def length(self) -> float:
        return float((self.end - self.start).sum())

    def less(self, other: Stretches) -> Stretches:
        """What of these lies outside the others."""
        return self.common(other.gaps(-np.inf, np.inf))

    def common(self, other: Stretches) -> Stretches:
        """What lies in both."""
        if not len(self.start) or not len(other.start):
            return NOTHING
        edges = np.unique(np.concatenate([*self, *other]))
        inside = self._covers(edges[:-1]) & other._covers(edges[:-1])
        return union(edges[:-1][inside], edges[1:][inside])

    def gaps(self, start: float, end: float) -> Stretches:
        """What lies between these, from ``start`` to ``end``."""
        begins, ends = np.append(start, self.end), np.append(self.start, end)
        begins, ends = np.clip(begins, start, end), np.clip(ends, start, end)
        kept = ends > begins
        return Stretches(begins[kept], ends[kept])

    def _covers(self, at: NDArray[np.float64]) -> NDArray[np.bool_]:
        """For each point, whether a stretch begins at or before it and ends after it."""
        which = np.searchsorted(self.start, at, side="right") - 1
        inside: NDArray[np.bool_] = (which >= 0) & (self.end[np.maximum(which, 0)] > at)
        return inside


NOTHING = Stretches(np.zeros(0), np.zeros(0))


def union(start: NDArray[np.float64], end: NDArray[np.float64]) -> Stretches:
    """The stretches that these cover together."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return NOTHING
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    last = np.append(np.nonzero(first)[0][1:] - 1, len(start) - 1)
    return Stretches(start[first], reach[last])
