"""A build of the C++ entry that nobody waits for: one detached process per machine, at the lowest priority.

A process that calls ops asks for it (``dispatch/adoption.py``); it goes on if that process ends. Processes that measure
and the build keep out of each other's way by one lock, ``MEASURING``: what measures holds it shared, the build alone. A
build that died leaves nothing, since entries are whole or not there (``cache.py``). It is tried again after
``FIRST_RETRY_S``, then after twice as long each time, up to ``LAST_RETRY_S``: a note beside the entries counts the
attempts, and where it cannot be written nothing is built.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelworks.build import native
from kernelworks.build.cache import FAILURE_SUFFIX, NO_LOCKS, SCRATCH
from kernelworks.machine import environment
from kernelworks.machine.memory import available_bytes
from kernelworks.records.json_text import read_json

__all__ = [
    "build", "fallback_reason", "forbid", "is_running", "measuring", "reason_against", "start", "is_wanted",
]  # fmt: skip

MEASURING = "measuring.lock"
WAITING = "waiting for the C++ entry of the ops, which another process has built in the background"
FIRST_RETRY_S, LAST_RETRY_S = 600.0, 86400.0
NEEDS_BYTES = 3 << 30  # the compiler takes 1.4 GB
POLL_S = 0.2
NICE = 19
PACKAGES = str(Path(__file__).resolve().parents[2])

# What the detached process runs. Its parent ends at once, so that the user's process has no child to wait for. It is
# the first to go if memory runs out.
PROGRAM = """
import os, sys
if os.fork():
    os._exit(0)
os.nice(int(sys.argv[1]))
try:
    open("/proc/self/oom_score_adj", "w").write("1000")
except OSError:
    pass
sys.path[:0], sys.path[len(sys.path):] = sys.argv[2:3], sys.argv[3:]
from kernelworks.build import background
background.build()
"""

_measuring = 0  # how many measurements run in this process, or 1 for good
_lock = threading.Lock()
_forked = False


def forbid() -> None:
    """From here on this process has nothing built: it measures, or works for one that does."""
    global _measuring
    with _lock:
        _measuring += 1


@contextlib.contextmanager
def measuring(progress: Callable[[str], None] | None = None, most_s: float = math.inf) -> Iterator[None]:
    """Around a measurement: no build is started on this machine meanwhile, and one that runs is waited for, ``most_s``
    at the most: on a busy machine its low priority may keep it from ending."""
    global _measuring
    with _lock:
        _measuring += 1
    try:
        with _held(progress, most_s):
            yield
    finally:
        with _lock:
            _measuring -= 1


@contextlib.contextmanager
def _held(progress: Callable[[str], None] | None, most_s: float) -> Iterator[None]:
    folder = environment.cache_dir("build")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / MEASURING, "a")  # noqa: SIM115  closed by what follows
    except OSError:  # nothing can be built there
        yield
        return
    with handle:
        most_s = min(most_s, 2 * environment.compile_seconds())
        begin = time.monotonic()
        while not _take(handle, fcntl.LOCK_SH) and time.monotonic() < begin + most_s:
            if progress is not None:
                progress(f"{WAITING}, {time.monotonic() - begin:.0f} s of at most {most_s:.0f} s")
            time.sleep(POLL_S)
        yield


def _take(handle: object, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except OSError as error:
        return error.errno in NO_LOCKS
    return True


# ---------------------------------------------------------------- who may ask for a build


@functools.cache
def watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _forked, _lock
    _forked, _lock = True, threading.Lock()


def reason_against() -> str:
    """Why this process has nothing built in the background; "" if it may."""
    asked = environment.native()
    if asked != "background":
        return f"KERNELWORKS_NATIVE is {asked}"
    if _forked or multiprocessing.parent_process() is not None:
        return "a worker process builds nothing"
    if _measuring:
        return "a measurement runs"
    if "kernelworks.cli" in sys.modules or _main().partition(".")[0] == "kernelworks":
        return "a verb, or a worker of one, runs here"
    if environment.is_tested() and not environment.is_native_set():
        return "tests build nothing"
    if not os.path.isdir("/proc/self"):
        return "only on Linux"
    return ""


def _main() -> str:
    """The name of the module that this process runs, "" for a file."""
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")


def is_wanted() -> bool:
    """Whether a build may be started now: the entry could be built here, is not, and no attempt was made lately."""
    return not reason_against() and native.is_buildable() and available_bytes() >= NEEDS_BYTES and _due(_note())


def fallback_reason() -> str:
    """Why calls go through Python, and what is known of builds in the background; "" where they go through C++."""
    why = native.fallback_reason()
    if not why or not native.is_missing():
        return why
    try:
        attempts, when = _attempts(_note())
    except native.BuildError:
        return why
    if is_running():
        return "it is not built yet, and is being built in the background"
    minutes = (time.time() - when) / 60
    return f"{why}; {attempts} builds ended without it, the last {minutes:.0f} minutes ago" if attempts else why


def is_running() -> bool:
    """Whether a build holds the lock."""
    try:
        with open(environment.cache_dir("build") / MEASURING) as handle:
            return not _take(handle, fcntl.LOCK_SH)
    except OSError:
        return False


def _note() -> Path:
    return environment.cache_dir("build") / f"{native.stem()}.background{FAILURE_SUFFIX}"


def _attempts(note: Path) -> tuple[int, float]:
    """How many builds were started, and when the last one was."""
    try:
        found = read_json(note)
        return int(found["attempts"]), float(found["when"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0.0


def _due(note: Path) -> bool:
    attempts, when = _attempts(note)
    if not attempts:
        return True
    wait = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 20))
    return not 0 <= time.time() - when < wait


# ---------------------------------------------------------------- the build


def start() -> bool:
    """Starts the detached build, if one ``is_wanted`` and nothing on this machine builds it or measures."""
    folder = environment.cache_dir("build")
    try:
        if not is_wanted():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / MEASURING, "a") as handle:
            if not _take(handle, fcntl.LOCK_EX):
                return False
            note = _note()
            if not _due(note):  # another process was quicker
                return False
            said = {"attempts": _attempts(note)[0] + 1, "when": time.time()}
            environment.write_whole(note, json.dumps(said), prefix=f"{SCRATCH}note-")
        command = [sys.executable, "-P", "-c", PROGRAM, str(NICE), PACKAGES, str(native.TORCH.parent)]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
            env=environment.variables_of_a_builder(), start_new_session=True,
        ) as process:  # fmt: skip
            return process.wait() == 0
    except (OSError, native.BuildError):
        return False


def build() -> None:
    """What the detached process does: the build, unless somebody measures or another builds."""
    forbid()
    folder = environment.cache_dir("build")
    try:
        with open(folder / MEASURING, "a") as handle:
            if _take(handle, fcntl.LOCK_EX) and native.build() is not None:
                _note().unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
