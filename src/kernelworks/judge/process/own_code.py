"""A candidate's own compiled code, as the supervisor sees it and takes it away in a process that is stopped: nothing of
that is seen from within.

Code that traps ends whoever runs it: a process that answers all the same does not run it. Code that returns at once
does nothing: a process whose answer is right all the same does not need it. And where a thread is at moments that are
drawn says how much of its time its own code has.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from kernelworks.judge.process.reading import MemoryUnreadable, ReadingRefused, read_bytes

__all__ = ["RETURNS", "TRAPS", "count_at_work", "mapped_files", "own_ranges", "take_away"]

# What stands in its place. What returns says 0, or 1: some functions tell by the one that all went well, some by the
# other. Wherever a function began, there is a way through what does nothing to the end of such a piece.
TRAPS = {"x86_64": b"\xcc", "aarch64": b"\x00\x00\x20\xd4"}
RETURNS: Sequence[dict[str, bytes]] = (
    {"x86_64": b"\x31\xc0\xc3".rjust(64, b"\x90"), "aarch64": b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"},
    {"x86_64": b"\x31\xc0\xff\xc0\xc3".rjust(64, b"\x90"), "aarch64": b"\x20\x00\x80\x52\xc0\x03\x5f\xd6"},
)
STACK_BYTES = 512  # from its top: who calls a function of the C library's from a loop lies there
IN_NO_CALL = b"-1"  # of the system
Range = tuple[int, int]


def mapped_files(pid: int | str) -> Iterator[tuple[Range, str, str]]:
    """Addresses, rights and file of each range of a process's memory that is a file's."""
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, rights, _, _, number, *path = line.split(maxsplit=5)
        if number != "0" and path:
            low, high = (int(one, 16) for one in addresses.split("-"))
            yield (low, high), rights, path[0]


def own_ranges(pid: int, maker: int, folders: Collection[Path]) -> list[Range]:
    """Where code of files lies that the process it was forked from does not have, and that nobody has installed: those
    in its folder, by whichever name, and those that have no name any more. Raises OSError."""
    shared = {path for _, _, path in mapped_files(maker)}

    def is_own(path: str) -> bool:
        return any(folder in Path(path).parents for folder in folders) or not os.path.exists(path)

    return [at for at, rights, path in mapped_files(pid) if "x" in rights and path not in shared and is_own(path)]


def take_away(pid: int, ranges: list[Range], instead: dict[str, bytes]) -> None:
    """Raises OSError where the system lets nobody write to another process's memory."""
    code = instead.get(platform.machine())
    if code is None:
        raise OSError(f"no instructions of {platform.machine()} are known")
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for low, high in ranges:
            memory.seek(low)
            memory.write(code * ((high - low) // len(code)))


def count_at_work(pid: int, ranges: Sequence[Range]) -> tuple[int, int]:
    """Of a stopped process: how many of its threads are at these ranges or in what was called from there, and how many
    are at work at all, in no call of the system's. Raises OSError."""
    own = others = 0
    for task in os.scandir(f"/proc/{pid}/task"):
        try:
            words = Path(task.path, "syscall").read_bytes().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if len(words) != 3 or words[0] != IN_NO_CALL:
            continue
        stack, at = (int(word, 16) for word in words[1:])
        if _are_within([at], ranges) or _are_within(_top(pid, stack), ranges):
            own += 1
        else:
            others += 1
    return own, own + others


def _top(pid: int, stack: int) -> Sequence[int]:
    try:
        found = read_bytes(pid, stack, STACK_BYTES)
    except (MemoryUnreadable, ReadingRefused):
        return ()
    return struct.unpack(f"={len(found) // 8}Q", found)


def _are_within(addresses: Sequence[int], ranges: Sequence[Range]) -> bool:
    return any(low <= at < high for at in addresses for low, high in ranges)
