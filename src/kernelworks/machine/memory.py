"""How much memory is left."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

__all__ = ["available_bytes"]

UNBOUNDED_BYTES = 1 << 62


class _Group(NamedTuple):
    """Where a control group says what it may take, and what it has taken; of that the files' pages are given back
    before anything else is refused: who has read a large file may still have all of it."""

    folder: Path
    limit: str
    taken: str
    given_back: tuple[str, ...]  # lines of memory.stat


GROUPS = (
    _Group(Path("/sys/fs/cgroup"), "memory.max", "memory.current", ("active_file", "inactive_file")),
    _Group(
        Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)  # fmt: skip


def available_bytes() -> int:
    """Memory that this process may still take: what the machine has free, and what its control group leaves, without
    what can be given back. Very much if neither can be read."""
    found = [UNBOUNDED_BYTES]
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for group in GROUPS:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
            limit, taken = (int((group.folder / name).read_text()) for name in (group.limit, group.taken))
            found.append(max(0, limit - taken + _given_back(group)))
    return min(found)


def _given_back(group: _Group) -> int:
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in (group.folder / "memory.stat").read_text().splitlines())
        return sum(int(count) for name, count in lines if name in group.given_back)
    return 0
