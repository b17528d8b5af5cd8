"""How many cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["usable_cores"]

MOUNTED, GROUPS_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CPU_TREES = ("cpu,cpuacct", "cpu", "cpuacct,cpu")  # under which names v1's tree of processor time is mounted


def usable_cores() -> float:
    """Those that it may run on, or what its control groups leave of them: the least quota of its own group and of all
    that hold it, of version 2, of version 1, or of both beside each other."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return min([cores, *_quotas()])


def _quotas() -> Iterator[float]:
    """The cores that each group allows that sets a limit."""
    for controllers, path in _groups():
        if not controllers:
            trees, files = [MOUNTED, MOUNTED / "unified"], ["cpu.max"]
        elif "cpu" in controllers.split(","):
            trees, files = [MOUNTED / name for name in CPU_TREES], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        for tree in trees:
            # In a container the tree may be mounted at the group itself, while the path is still the host's: then no
            # folder of that name is there, and the root is the group.
            for folder in (tree / path, *(tree / path).parents):
                if not folder.is_relative_to(tree):
                    break
                found = _quota([folder / file for file in files])
                if found is not None:
                    yield found


def _groups() -> Iterator[tuple[str, str]]:
    """The controllers of each tree that this process is in (none for version 2), and its group's path there."""
    try:
        lines = GROUPS_OF_PROCESS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    found = [(line.split(":", 2)[1], line.split(":", 2)[2]) for line in lines if line.count(":") >= 2]
    for controllers, path in found or [("", "/"), ("cpu", "/")]:
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        yield controllers, "/".join(parts)


def _quota(files: list[Path]) -> float | None:
    """Of ``cpu.max``, or of v1's two files; None without a limit ("max", -1), or without the files."""
    try:
        quota, period = " ".join(file.read_text(encoding="ascii") for file in files).split()
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except (OSError, ValueError):
        return None
