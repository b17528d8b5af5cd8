"""A candidate's own compiled code, taken away from its process while that is stopped: whoever runs an instruction of it
ends with a signal then. A process that answers all the same does not run it, whatever it ran where it was watched."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator
from pathlib import Path

__all__ = ["mapped_files", "own_ranges", "take_away"]

TRAPS = {"x86_64": b"\xcc", "aarch64": b"\x00\x00\x20\xd4"}
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


def take_away(pid: int, ranges: list[Range]) -> None:
    """Raises OSError where the system lets nobody write to another process's memory."""
    code = TRAPS.get(platform.machine())
    if code is None:
        raise OSError(f"no instruction of {platform.machine()} is known that traps")
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for low, high in ranges:
            memory.seek(low)
            memory.write(code * ((high - low) // len(code)))
