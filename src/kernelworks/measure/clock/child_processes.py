"""The CPU time of the processes that this one has started, those that they started among them.

What a program's own workers do (a pool, a DataLoader's) is the program's, and no neighbour's. Who was waited for is
counted by the kernel; who still runs is found in ``/proc``, by whose child it is. A process that its parent has left
behind is not found.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

__all__ = ["child_seconds"]

PARENT, FIRST_TIME, TIMES = 1, 11, 4  # of /proc/PID/stat, behind the name: utime, stime, cutime, cstime


def child_seconds() -> float:
    """Seconds of user and system time, those that run to within a tick of 10 ms each. Costs some microseconds where
    there is no child, else a look at every process of the machine."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = waited.ru_utime + waited.ru_stime
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # takes no child's end from whoever waits for it
    except ChildProcessError:
        return seconds
    children: dict[int, list[tuple[int, int]]] = {}  # process -> those that it has started, with their ticks
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
                fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                ticks = sum(map(int, fields[FIRST_TIME : FIRST_TIME + TIMES]))
                children.setdefault(int(fields[PARENT]), []).append((int(path.name), ticks))
    found, ticks = [os.getpid()], 0
    for process in found:
        for child, its in children.get(process, ()):
            found.append(child)
            ticks += its
    return seconds + ticks / os.sysconf("SC_CLK_TCK")
