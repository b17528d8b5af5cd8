"""Searches beside each other on one host: how many workers each may have, whose the cores are, whose turn at the clock.

Everything is a lock on a file in the user's cache, which the system lets go when its holder ends, however it ends: so a
search or a worker that was killed holds nothing.

| file | is held by |
|---|---|
| ``farm/searches/*.json`` | a search, as long as it judges: how many workers it wants, and how many cores each |
| ``farm/cores/N.lock``, ``farm/gpus/N.lock`` | the worker whose core, or GPU, that is |
| ``farm/clock.lock`` | whoever takes times on cores now |
| ``farm/clock-NAME.lock`` | who has the GPU of that name for itself now, or all who use it beside each other |
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

from kernelworks.machine import environment

__all__ = ["Claim", "Share", "claim_resources", "clock", "cores", "fair", "turns"]

FRESH_S = 1.0  # for which a share holds: counting again is a few reads of small files
POLL_S = 0.2

N = TypeVar("N", int, str)
Turn = Callable[[], contextlib.AbstractContextManager[None]]


def cores() -> list[int]:
    """The processors that this process may use, those of one core beside each other."""

    def core(number: int) -> tuple[int, int, int]:
        folder = Path(f"/sys/devices/system/cpu/cpu{number}/topology")
        try:
            package, of = (int((folder / f).read_text(encoding="ascii")) for f in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            return 0, number, number
        return package, of, number

    return sorted(os.sched_getaffinity(0), key=core)


def _locked(path: Path, *, wait: bool, shared: bool = False) -> int | None:
    """The descriptor of a file that is locked now; None where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file


@contextlib.contextmanager
def clock(gpu: str = "", *, beside: bool = False) -> Iterator[None]:
    """One at a time on this host, or on a GPU of it: whoever takes times. ``beside``: any number at a time, as long as
    nobody takes times."""
    name = f"clock-{re.sub(r'[^A-Za-z0-9-]', '-', gpu)}.lock" if gpu else "clock.lock"
    file = _locked(environment.cache_dir("farm") / name, wait=True, shared=beside)
    assert file is not None
    try:
        yield
    finally:
        os.close(file)


def turns(device: str) -> tuple[Turn, Turn]:
    """What a sitting takes its turns by where others sit on the same host, ``alone`` and ``beside``: on cores while
    times are taken, on a GPU for all that is done there."""
    if device == "cpu":
        return clock, contextlib.nullcontext
    gpu = (environment.visible_gpus() or ["0"])[0]
    return functools.partial(clock, gpu), functools.partial(clock, gpu, beside=True)


# ---------------------------------------------------------------- cores and GPUs


@dataclass
class Claim(Generic[N]):
    """Cores, or GPUs, that nobody else has until it is let go, or this process ends."""

    numbers: tuple[N, ...]
    files: tuple[int, ...]

    def let_go(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = ()


def claim_resources(kind: str, among: Sequence[N], count: int, patience_s: float) -> Claim[N]:
    """So many of the ``"cores"`` or ``"gpus"`` of these numbers or names, all at once. Raises TimeoutError if others
    have them for longer than that."""
    folder, until = environment.cache_dir("farm"), time.monotonic() + patience_s
    while True:
        one_at_a_time = _locked(folder / f"{kind}.lock", wait=True)
        assert one_at_a_time is not None
        held: dict[N, int] = {}
        try:
            for number in among:
                file = _locked(folder / kind / f"{number}.lock", wait=False)
                if file is not None:
                    held[number] = file
                if len(held) == count:
                    return Claim(tuple(held), tuple(held.values()))
        finally:
            os.close(one_at_a_time)
        for file in held.values():
            os.close(file)
        if time.monotonic() > until:
            raise TimeoutError(f"{count} of {len(among)} {kind} were not free within {patience_s:.0f} s")
        time.sleep(POLL_S)


# ---------------------------------------------------------------- shares


def fair(total: int, wanted: Sequence[tuple[int, int]]) -> list[int]:
    """Workers of each search, of those that it wants and the cores of each: by turns one more for each that wants one
    more and for whose next there are cores left."""
    given, left, more = [0] * len(wanted), total, True
    while more:
        more = False
        for at, (most, each) in enumerate(wanted):
            if given[at] < most and each <= left:
                given[at], left, more = given[at] + 1, left - each, True
    return given


class Share:
    """``with Share("cores", total, workers, each) as share: share.workers()``: as many of the workers that a search
    wants as are its fair share now. Which searches there are is read from files; one that was killed counts no more."""

    def __init__(self, kind: str, total: int, workers: int, each: int) -> None:
        self.kind, self.total, self.wanted, self.each = kind, total, workers, each
        self.folder = environment.cache_dir("farm") / "searches"
        self._read_at, self._mine = float("-inf"), 0

    def __enter__(self) -> Share:
        self.name = f"{time.time_ns():020d}-{os.getpid()}.json"  # so that who came first is first
        beside = self.folder / f".{self.name}"
        file = _locked(beside, wait=True)
        assert file is not None
        self._file = file
        os.write(file, json.dumps({"kind": self.kind, "workers": self.wanted, "each": self.each}).encode())
        os.rename(beside, self.folder / self.name)  # there, it is held: nobody takes it for one that was left behind
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        (self.folder / self.name).unlink(missing_ok=True)
        os.close(self._file)

    def workers(self) -> int:
        if time.monotonic() - self._read_at > FRESH_S:
            names, wanted = [], []
            for path in sorted(self.folder.glob("[0-9]*.json")):
                one = (self.kind, self.wanted, self.each) if path.name == self.name else _search(path)
                if one is not None and one[0] == self.kind:
                    names.append(path.name)
                    wanted.append(one[1:])
            self._mine = fair(self.total, wanted)[names.index(self.name)]
            self._read_at = time.monotonic()
        return self._mine


def _search(path: Path) -> tuple[str, int, int] | None:
    """What another search wants; None where it is gone."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)  # its process ended without a word
        return None
    except BlockingIOError:
        said = json.loads(os.read(file, 4096))
        return str(said["kind"]), int(said["workers"]), int(said["each"])
    finally:
        os.close(file)
