"""Compiled files on disk: whole entries or none, and none trusted unhashed.

An entry is two files, ``STEM.so`` (or ``.cubin``) and ``STEM.json``. The second holds the SHA-256 of the first and is
written last, each through a rename, so a killed process, a full disk or ten processes starting at once leave either
a whole entry or none. An entry whose bytes do not match its hash is built again.

What could not be built is remembered beside the entries (``*.failed.json``) for ``RETRY_S``, so that neither the next
call nor the next process compiles it in vain. ``forget_failures``, with which ``kernelworks verify`` begins, drops it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kernelworks.machine import environment
from kernelworks.records.json_text import read_json, read_regular

__all__ = [
    "BuildError", "RememberedFailure", "around_builds", "building", "built_s", "entry", "failure", "forget_failures",
    "intact", "remember",
]  # fmt: skip

RETRY_S = 3600.0  # a repair that changes neither source nor compiler (a header installed, memory freed) is seen then
SCRATCH = ".building-"
FAILURE_SUFFIX = ".failed.json"
MOST_LIBRARY = 1 << 30  # bytes of a compiled file: the largest that we make has 2 MB
POLL_S = 0.05
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})  # some network file systems


class BuildError(RuntimeError):
    """A library could not be built, read or loaded. The text says what was run and what came back.

    ``about`` names what is at fault (a compiler, a cache folder, one source), so that one fault is said once however
    many kernels it takes. ``lasting``: the same attempt would fail again, in another process too.
    """

    def __init__(self, text: str, *, about: str = "", lasting: bool = False) -> None:
        super().__init__(text)
        self.about, self.lasting = about or text, lasting


class RememberedFailure(BuildError):
    """A failure of an earlier process, on record in the cache."""


# ---------------------------------------------------------------- the time that it takes


class _Building:
    """For how long something was being built in this process, several at a time counted once."""

    def __init__(self) -> None:
        self.lock, self.at_work, self.since, self.seconds = threading.Lock(), 0, 0.0, 0.0


_building = _Building()


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Around what is waited for once, on a machine or in a process: no call takes that time."""
    with _building.lock:
        if not _building.at_work:
            _building.since = time.perf_counter()
        _building.at_work += 1
    try:
        yield
    finally:
        with _building.lock:
            _building.at_work -= 1
            if not _building.at_work:
                _building.seconds += time.perf_counter() - _building.since


_around: list[Callable[[], contextlib.AbstractContextManager[None]]] = []


@contextlib.contextmanager
def around_builds(enter: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Within, ``enter()`` is entered around each entry that has to be made, or waited for as another process makes it:
    that process may be one that stands while something is timed here."""
    _around.append(enter)
    try:
        yield
    finally:
        _around.remove(enter)


def built_s() -> float:
    """The seconds that builds have taken in this process so far."""
    with _building.lock:
        return _building.seconds + (time.perf_counter() - _building.since if _building.at_work else 0.0)


# ---------------------------------------------------------------- what failed before


def failure(stem: str) -> RememberedFailure | None:
    """The failure on record for an entry, or for a compiler; None where there is none or it is too old."""
    path = environment.cache_dir("build") / f"{stem}{FAILURE_SUFFIX}"
    try:
        found = read_json(path)
        age = time.time() - float(found["when"])
        text, about = str(found["text"]), str(found["about"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not 0 <= age < RETRY_S:
        return None
    again = f"remembered from {age / 60:.0f} minutes ago; `kernelworks verify` or deleting {path} tries again"
    return RememberedFailure(f"{text}\n({again})", about=about)


def remember(stem: str, error: BuildError) -> None:
    """Keeps a failure for other processes. Where the folder cannot be written, this process alone knows."""
    if not error.lasting:
        return
    path = environment.cache_dir("build") / f"{stem}{FAILURE_SUFFIX}"
    with contextlib.suppress(OSError):
        said = {"when": time.time(), "about": error.about, "text": str(error)}
        environment.write_whole(path, json.dumps(said), prefix=f"{SCRATCH}note-")


def forget_failures() -> None:
    """Drops every failure on record, so that what failed is tried again."""
    for path in environment.cache_dir("build").glob(f"*{FAILURE_SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()


# ---------------------------------------------------------------- entries


def intact(made: Path, note: Path, unlike: str = "") -> bool:
    """Whether the file holds the bytes that its note tells of, and not those of hash ``unlike``."""
    try:
        recorded = read_json(note)["sha256"]
        return bool(recorded != unlike and recorded == hashlib.sha256(read_regular(made, MOST_LIBRARY)).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[None]:
    """Alone among the processes, or after ``seconds`` a BuildError: a holder that was stopped never lets go."""
    end = time.monotonic() + seconds
    with open(path, "w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system when a holder dies
                break
            except OSError as error:
                if error.errno in NO_LOCKS:  # the renames alone then keep entries whole, and some work is done twice
                    break
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                    raise
            if time.monotonic() > end:
                raise BuildError(f"another process has held {path} for {seconds:.0f} s", about=str(path.parent))
            time.sleep(POLL_S)
        yield


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder of this process alone, locked while it lives, so that a sweep can tell it from one left by the dead."""
    while True:
        made = Path(tempfile.mkdtemp(dir=folder, prefix=SCRATCH))
        try:
            handle = os.open(made, os.O_RDONLY)
        except FileNotFoundError:  # nobody held its lock yet: another's sweep took it for one left by the dead
            continue
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if made.is_dir():  # nor did one come before the lock
            break
        os.close(handle)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def _sweep(folder: Path) -> None:
    """Removes what builds that were killed have left: nobody holds its lock any more."""
    for left in folder.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            if not left.is_dir():
                if time.time() - left.stat().st_mtime > RETRY_S:
                    left.unlink()
                continue
            handle = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def entry(
    stem: str,
    suffix: str,
    make: Callable[[Path], None],
    record: Mapping[str, str],
    *,
    attempt: str = "",
    unlike: str = "",
) -> Path:
    """The path of one cached file, made by ``make(path)`` if the cache has no intact entry for it.

    ``stem`` names the entry and holds the hash of all that it is made from; ``record`` is kept beside it for readers.
    ``attempt`` names what is tried, if more than the entry's name says (a compiler as it lies on disk): a failure is
    remembered for it alone. ``unlike``: the hash of a file that will not load, for which the entry is not taken.
    Raises BuildError: ``make`` failed (now, or within the hour), or the cache folder cannot be written.
    """
    folder = environment.cache_dir("build")
    made, note = folder / f"{stem}{suffix}", folder / f"{stem}.json"
    if intact(made, note, unlike):
        return made
    known = failure(attempt or stem)
    if known is not None:
        raise known
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            for enter in (building, *_around):
                stack.enter_context(enter())
            stack.enter_context(_locked(folder / f"{stem}.lock", 2 * environment.compile_seconds()))
            if intact(made, note, unlike):  # another process built it while we waited
                return made
            known = failure(attempt or stem)
            if known is not None:
                raise known
            _sweep(folder)
            with _scratch(folder) as scratch:
                fresh, fresh_note = scratch / made.name, scratch / note.name
                make(fresh)
                sha256 = hashlib.sha256(fresh.read_bytes()).hexdigest()
                fresh_note.write_text(json.dumps({"sha256": sha256, **record}), encoding="utf-8")
                note.unlink(missing_ok=True)
                os.replace(fresh, made)
                os.replace(fresh_note, note)
    except BuildError as error:
        remember(attempt or stem, error)
        raise
    except OSError as error:
        words = (
            f"the build cache {folder} cannot be used ({error}): set KERNELWORKS_CACHE to a folder that can be written"
        )
        raise BuildError(words, about=str(folder)) from error
    return made
