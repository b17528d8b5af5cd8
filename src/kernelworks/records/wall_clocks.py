"""The wall clocks of a program's runs: how far they spread, and the part of one that is not the program's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["CONTENTION", "half_spread"]

CONTENTION = "CPU contention"  # the part of a time breakdown that other processes took
FEW_RUNS = 4  # fewer than these have no quartiles


def half_spread(walls_s: Sequence[float]) -> float:
    """Half of what lies between the quartiles, in seconds; of fewer than four runs, between the least and the most. 0
    of a single run, which says nothing about others."""
    if len(walls_s) < 2:
        return 0.0
    if len(walls_s) < FEW_RUNS:
        return (max(walls_s) - min(walls_s)) / 2
    low, _, high = statistics.quantiles(walls_s, n=4)
    return (high - low) / 2
