"""How many cores this process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores() -> float:
    """Those that it may run on, or what its control group leaves of them."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, int(quota) / int(period))
    return cores
