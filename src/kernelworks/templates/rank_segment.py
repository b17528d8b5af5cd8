"""Memory that the ranks of a process group share, if they are on one host; ``simd/ranks.hpp`` says how it is used.

The first call of a group makes it: rank 0 makes a file that has no name and lies in memory, the others map it by rank
0's table of files. Nothing is left behind however a rank ends. The ranks find each other by the group's own store.

A rank that waits looks, every 20 ms, for signals, for ranks that have ended, and whether the group's timeout is over.
Then it says in the segment which rank is missing, and the group's later calls raise at once, on every rank: who came
late would count other steps than the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from kernelworks.contract.ranks import SELF_GROUP, group_of

__all__ = ["RankSegment", "segment_of"]

# As simd/ranks.hpp has them.
CONTROL, TEXT, TEXT_BYTES, BROKEN_AT, REASON_BYTES = 4096, 1024, 256, 2048, 512
AREA = 256 * 1024
MOST_RANKS = 64
DONE, WAITING, BROKEN, ANOTHER = range(4)

NAP_S = 0.001  # between looks into a group's store


def _started(pid: int) -> int:
    """When a process began, in the system's ticks; 0 of one that has ended, also where nobody has asked for its status
    yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


@functools.cache
def _host() -> str:
    """What tells hosts apart, and containers whose processes do not see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _timeout_of(group: Any) -> float:
    import torch
    import torch.distributed as dist

    try:
        limit: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):  # a backend of another maker
        limit = dist.default_pg_timeout
    return limit.total_seconds()


class RankSegment:
    """The segment of one process group, as this rank sees it."""

    def __init__(self, group: Any, key: str) -> None:
        """Waits until all ranks have come. ``key`` is alike on all of them, and new for each group. Raises RuntimeError
        that names a rank that does not come, or that is on another host."""
        self.rank, self.ranks, self.timeout_s = group.rank(), group.size(), _timeout_of(group)
        if self.ranks > MOST_RANKS:
            raise RuntimeError(f"a kernel in shared memory takes groups of {MOST_RANKS} ranks, got {self.ranks}")
        size = self.ranks * (CONTROL + 2 * AREA)
        file = os.memfd_create("kernelworks", os.MFD_CLOEXEC) if self.rank == 0 else -1
        try:
            if self.rank == 0:
                os.ftruncate(file, size)
            self._processes = self._meet(group, key, file)
            if self.rank:
                first = self._processes[0]
                try:
                    file = os.open(f"/proc/{first['pid']}/fd/{first['file']}", os.O_RDWR | os.O_CLOEXEC)
                except OSError as error:
                    raise RuntimeError(f"what rank 0 shares cannot be opened: {error}") from error
            self._memory = mmap.mmap(file, size)
        except BaseException:
            if file >= 0:
                os.close(file)
            raise
        if self.rank == 0:
            weakref.finalize(self, os.close, file)  # by which the others open it
        else:
            os.close(file)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _meet(self, group: Any, key: str, file: int) -> list[dict[str, Any]]:
        """All ranks' processes, in their order."""
        import torch.distributed as dist

        store, pid = dist.distributed_c10d._get_process_group_store(group), os.getpid()
        mine = {"host": _host(), "pid": pid, "started": _started(pid), "file": file}
        end, found = time.monotonic() + self.timeout_s, []
        try:
            store.set(f"{key}/{self.rank}", json.dumps(mine))
            for rank in range(self.ranks):
                nap = NAP_S
                while not store.check([f"{key}/{rank}"]):
                    if time.monotonic() > end:
                        raise RuntimeError(f"rank {rank} did not come within {self.timeout_s:g} s")
                    time.sleep(nap)
                    nap = min(2 * nap, 0.05)
                found.append(json.loads(store.get(f"{key}/{rank}")))
        except dist.DistError as error:
            raise RuntimeError(f"the group's store, which one of its ranks keeps, is gone: {error}") from error
        for rank, process in enumerate(found):
            if process["host"] != mine["host"]:
                raise RuntimeError(f"rank {rank} is not on this host: a kernel in shared memory cannot reach it")
        return found

    # ------------------------------------------------------------ calls

    def run(self, function: Callable[..., int], text: str, *args: Any) -> None:
        """One call of a function of ``simd/ranks.hpp``: ``function(segment, rank, ranks, *args, text, resume)``.
        ``text`` must be alike on all ranks.

        Raises ValueError on every rank where it is not, before a result is written; RuntimeError that names a rank that
        has ended, or did not come within the group's timeout.
        """
        at = _text_address(text)
        status = function(self._address, self.rank, self.ranks, *args, at, False)
        if status == WAITING:
            began = time.monotonic()
            try:
                while status == WAITING:
                    self._look_for_missing(began)
                    status = function(self._address, self.rank, self.ranks, *args, at, True)
            except BaseException as error:
                self._break(str(error) if isinstance(error, RuntimeError) else f"rank {self.rank} was interrupted")
                raise
        if status == BROKEN:
            raise RuntimeError(f"the group computes no more in shared memory: {self._reason()}; make another group")
        if status == ANOTHER:
            raise ValueError(f"all ranks must call alike: {self._calls()}")

    def _posted(self, rank: int) -> int:
        return int(struct.unpack_from("<Q", self._memory, rank * CONTROL)[0])

    def _look_for_missing(self, began: float) -> None:
        """Raises RuntimeError that names a rank that is not where this one is, and will not come."""
        mine, late = self._posted(self.rank), time.monotonic() - began > self.timeout_s
        for rank in range(self.ranks):
            if self._posted(rank) >= mine:
                continue
            process = self._processes[rank]
            ended = _started(process["pid"]) != process["started"]
            if self._posted(rank) >= mine:  # it came, then ended
                continue
            if ended:
                raise RuntimeError(f"rank {rank} (process {process['pid']}) has ended")
            if late:
                raise RuntimeError(f"rank {rank} (process {process['pid']}) did not come within {self.timeout_s:g} s")

    def _break(self, reason: str) -> None:
        """Tells all ranks that there is no going on. The first reason stays."""
        if not struct.unpack_from("<q", self._memory, BROKEN_AT)[0]:
            said = reason.encode()[: REASON_BYTES - 1]
            self._memory[BROKEN_AT + 8 : BROKEN_AT + 8 + len(said) + 1] = said + b"\0"
            struct.pack_into("<q", self._memory, BROKEN_AT, 1)

    def _reason(self) -> str:
        said = self._memory[BROKEN_AT + 8 : BROKEN_AT + 8 + REASON_BYTES]
        return said.partition(b"\0")[0].decode(errors="replace")

    def _calls(self) -> str:
        """What each rank called, in words."""
        said = []
        for rank in range(self.ranks):
            at = rank * CONTROL + TEXT + (self._posted(self.rank) & 1) * TEXT_BYTES
            said.append(f"rank {rank} {self._memory[at : at + TEXT_BYTES].rstrip(bytes(1)).decode(errors='replace')}")
        return ", ".join(said)


@functools.lru_cache(4096)
def _text(text: str) -> Any:
    said = text.encode()
    if len(said) > TEXT_BYTES:  # of dozens of dimensions
        said = said[: TEXT_BYTES - 64] + hashlib.sha256(said).hexdigest().encode()
    return ctypes.create_string_buffer(said.ljust(TEXT_BYTES, b"\0"), TEXT_BYTES)


def _text_address(text: str) -> int:
    return ctypes.addressof(_text(text))


# ---------------------------------------------------------------- segments by group

_segments: weakref.WeakKeyDictionary[Any, RankSegment] = weakref.WeakKeyDictionary()
_made: dict[str, int] = {}  # groups of one name, one after the other, that had a segment


def segment_of(name: str | None) -> RankSegment | None:
    """The segment of a process group, which the first call makes: all ranks must come to it. None of the process
    alone."""
    if name == SELF_GROUP:
        return None
    group = group_of(name)
    found = _segments.get(group)
    if found is None:
        count = _made[group.group_name] = _made.get(group.group_name, 0) + 1
        found = RankSegment(group, f"kernelworks/{group.group_name}/{count}")
        with contextlib.suppress(TypeError):
            _segments[group] = found
    return found
