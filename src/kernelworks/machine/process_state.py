"""What the system says of a process: its name, its state, its parent, and the processor time that it has used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessState", "every_process", "members_below", "process_state", "thread_states"]

PROC = Path("/proc")
STATE, PARENT, USER, CHILDREN_SYSTEM = 0, 1, 11, 14  # fields behind the name


class ProcessState(NamedTuple):
    name: str  # as its program's file is called, cut after 15 letters
    state: str  # a letter, as in ps: R, S, D, T, Z, ...
    parent: int
    own_cpu_s: float  # of the threads that it has and had
    cpu_s: float  # with that of the children that it has waited for


def process_state(pid: int) -> ProcessState | None:
    """None if it has ended, or where the system does not say. Cost: 20 us."""
    return _read(PROC / str(pid) / "stat")


def thread_states(pid: int) -> list[str]:
    """The letters of all its threads; none if it has ended, or where the system does not say."""
    try:
        found = [_read(task / "stat") for task in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
    return [one.state for one in found if one is not None]


def every_process() -> Iterator[tuple[int, ProcessState]]:
    """All that there are now, by number. Cost: some ms."""
    for place in PROC.glob("[0-9]*"):
        found = process_state(int(place.name))
        if found is not None:  # else it has ended meanwhile
            yield int(place.name), found


def members_below(roots: Iterable[int], every: Mapping[int, ProcessState]) -> list[int]:
    """These, and those of all processes that they and theirs have started: parents first, each once."""
    below: dict[int, list[int]] = {}
    for pid, state in every.items():
        below.setdefault(state.parent, []).append(pid)
    found = dict.fromkeys(roots)
    waiting = list(found)
    for pid in waiting:  # which grows meanwhile
        fresh = [child for child in below.get(pid, ()) if child not in found]
        found.update(dict.fromkeys(fresh))
        waiting += fresh
    return waiting


def _read(path: Path) -> ProcessState | None:
    """A name may hold blanks and brackets: it begins at the first and ends at the last."""
    try:
        name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
        fields = rest.split()
        user, system, *children = (int(ticks) for ticks in fields[USER : CHILDREN_SYSTEM + 1])
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        own = (user + system) * tick_s
        return ProcessState(name, fields[STATE], int(fields[PARENT]), own, own + sum(children) * tick_s)
    except (OSError, ValueError, IndexError):
        return None
