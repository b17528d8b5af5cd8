"""How much memory is left."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["available_bytes"]

UNBOUNDED_BYTES = 1 << 62


def available_bytes() -> int:
    """Memory that this process may still take: what the machine has free, and what its control group leaves. Very much
    if neither can be read."""
    found = [UNBOUNDED_BYTES]
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
        group = Path("/sys/fs/cgroup")
        limit, taken = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(max(0, limit - taken))
    return min(found)
