"""Whether a child process will ever end, told from what it does: not from how long it takes, which is its neighbours'
doing as much as its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kernelworks.machine.process_state import every_process, members_below, process_state, thread_states

__all__ = ["COMPILERS", "Tree", "tree_bytes", "tree_now", "wait_unless_stuck"]

COMPILERS = {"cc1plus", "cc1", "g++", "c++", "clang++", "clang", "as", "ld", "nvcc", "cicc", "ptxas"}

AWAKE_STATES = frozenset("RD")

LOOK_S = 0.05
LOOKS = 200  # in a row at which a child slept and had used no processor since the one before: it waits for nobody
CPU_S = 300.0  # of its own that a child may use: one that spins for what never comes


def wait_unless_stuck(child: int) -> int | None:
    """The status of a child once it has ended. None of one that is stuck, which is killed: it sleeps look after look,
    or it has used more of the processor than it can need. A child that waits for its turn, for a disk, or is stopped,
    is not stuck, however long that takes."""
    idle, used = 0, -1.0
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        asleep, now = _state(child)
        idle = idle + 1 if asleep and now == used else 0
        used = now
        if idle >= LOOKS or used > CPU_S:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return None
        time.sleep(min(LOOK_S, 0.001 * 2 ** min(idle, 6)))


def _state(pid: int) -> tuple[bool, float]:
    """Whether all threads of a process sleep, and the seconds of processor that it has used. Where the system does not
    say, it is taken to be busy."""
    found, threads = process_state(pid), thread_states(pid)
    return (set(threads) == {"S"}, found.own_cpu_s) if found is not None else (False, 0.0)


@dataclass(frozen=True)
class Tree:
    """A process and all that it has started, at one moment."""

    cpu_s: float  # that its processes and the ended children of those have used
    compiles: bool  # a compiler is one of them
    awake: bool = False  # a thread of them runs, wants to, or waits for a disk


def tree_now(root: int) -> Tree:
    """What a process and those below it have used by now, in whatever group or session they are, whether a compiler is
    one of them, and whether any of their threads does something. Cost: some ms: all processes are read."""
    every = dict(every_process())
    members = members_below([root], every)
    found = [every[pid] for pid in members if pid in every]
    awake = any(AWAKE_STATES.intersection(thread_states(pid)) for pid in members)
    return Tree(sum(one.cpu_s for one in found), any(one.name in COMPILERS for one in found), awake)


def tree_bytes(root: int) -> int:
    """Memory that a process and those below it have together: what several of them share counts once. Cost: some ms,
    and a millisecond for each GB."""
    return sum(_share_bytes(pid) for pid in members_below([root], dict(every_process())))


def _share_bytes(pid: int) -> int:
    """Of a page that so many processes have each is given its part. 0 if it has ended, or is another user's."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration):
        return 0
