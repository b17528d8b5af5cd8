"""Two measurements of ours at once would each read the other as noise: the second one waits for the first, and says so.

The lock is a file in the cache folder (``flock``): the system frees it when its holder ends, however it ends. A process
that a holder has started does not wait for it, nor does one of several ranks of a program, which wait for each other.

Processes that CUDA_VISIBLE_DEVICES gives other GPUs measure side by side: each shares the machine's lock with them and
has its GPUs' own one alone. Whoever may use every device has the machine alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from kernelworks.machine import environment
from kernelworks.machine.process_state import process_state

__all__ = ["measuring_alone"]

Say = Callable[[str], None]
MOST_S = 300.0  # then both go on at once; noise is measured and said anyway
POLL_S = 0.2
MACHINE = "measuring"

_depth = 0  # of this process's own measurements inside each other
_held: list[IO[str]] = []


@contextlib.contextmanager
def measuring_alone(say: Say, notice: Say | None = None, most_s: float = MOST_S) -> Iterator[None]:
    """Waits until no other process of this user's measures. ``say`` is told of it again and again, ``notice`` once."""
    global _depth
    begin, files = time.monotonic(), list[IO[str]]()
    for name, how in [] if _depth or environment.world_size() > 1 else _locks():
        file = _open(name)
        if file is not None and not _wait(file, how, say, notice or say, most_s - (time.monotonic() - begin)):
            file.close()
            break
        if file is not None:
            files.append(file)
    _depth += 1
    _held.extend(files)
    try:
        yield
    finally:
        _depth -= 1
        for file in reversed(files):
            _held.remove(file)
            with contextlib.suppress(OSError):
                file.truncate(0)
            file.close()


def _locks() -> list[tuple[str, int]]:
    """The files to lock, and how. Two lists of GPUs that overlap are taken for different ones: who sets both by hand
    knows of it."""
    gpus = re.sub(r"[^\w-]+", "-", environment.variables().get("CUDA_VISIBLE_DEVICES", "")).strip("-")
    if not gpus:
        return [(MACHINE, fcntl.LOCK_EX)]
    return [(MACHINE, fcntl.LOCK_SH), (f"{MACHINE}-{gpus[:100]}", fcntl.LOCK_EX)]


def _open(name: str) -> IO[str] | None:
    path = environment.cache_dir("locks") / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "a+", encoding="utf-8")
    except OSError:  # a folder that cannot be written keeps nobody from measuring
        return None


def _wait(file: IO[str], how: int, say: Say, notice: Say, most_s: float) -> bool:
    """Whether the lock is ours now. False if it is not to be waited for, or not any longer."""
    begin, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False  # a file system without locks
        else:
            if how == fcntl.LOCK_EX:  # several that share a lock do not overwrite each other's names
                file.truncate(0)
                file.write(f"{os.getpid()} {time.time()}")
                file.flush()
            return True
        holder, since = _holder(file)
        if holder in _ancestors():
            return False
        if time.monotonic() - begin > most_s:
            notice(f"process {holder} still measures after {most_s:.0f} s: not waiting any longer")
            return False
        (say if told else notice)(f"waiting for another measurement of kernelworks, pid {holder}, since {since:.0f} s")
        told = True
        time.sleep(POLL_S)


def _holder(file: IO[str]) -> tuple[int, float]:
    """The process that holds the lock, or one of those that share it, and for how many seconds; 0 if none has said so
    yet."""
    path = Path(file.name)
    for place in (path, *(sorted(path.parent.glob(f"{MACHINE}-*")) if path.name == MACHINE else ())):
        with contextlib.suppress(OSError, ValueError):
            pid, begun = place.read_text(encoding="utf-8").split()
            return int(pid), max(0.0, time.time() - float(begun))
    return 0, 0.0


def _ancestors() -> set[int]:
    """This process and those that have started it."""
    found, pid = set[int](), os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        state = process_state(pid)
        if state is None:
            break
        pid = state.parent
    return found


def _let_go() -> None:
    """A fork shares the lock: it must not outlive its holder there."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file.fileno())
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
