"""Whether the code in a process is still that of its libraries' files, as the kernel says it to the supervisor.

A process is forked from one that has loaded torch, and shares with it every page that neither has written to since. So
a page of code, or of a table of other libraries' functions that the loader has closed, which is the process's own
has been written to by it: a clock, a comparison or a message is another function then, in C too, and nothing that the
process says of itself would show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find_code_changes"]

MAPPING_LINE = re.compile(r"^([0-9a-f]+-[0-9a-f]+) (r-xp|r--p) \S+ \S+ [1-9]\d* +(/.*)$")
OWN = ("Private_Dirty:", "Anonymous:")  # kB of a range that nobody else has, and that are no longer the file's
LOADER = "/ld-"
FILTERS = ("Seccomp", "Seccomp_filters")  # of system calls

Range = tuple[str, str, str]  # addresses, what may be done there, file


def _ranges(listing: str) -> Iterator[tuple[Range, bool]]:
    """Ranges of files that nobody may write to, and whether the process has a page there that is its own."""
    at: Range | None = None
    own = dict.fromkeys(OWN, False)
    for line in listing.splitlines():
        if line[:1].isupper():
            word, _, rest = line.partition(" ")
            if word in own:
                own[word] = rest.split()[0] != "0"
            continue
        if at is not None:
            yield at, all(own.values())
        match = MAPPING_LINE.match(line)
        at = (match[1], match[2], match[3]) if match else None
        own = dict.fromkeys(OWN, False)
    if at is not None:
        yield at, all(own.values())


def _filters(pid: int) -> int:
    """Of system calls: how many its calls go through."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    said = {name: int(rest) for name, _, rest in (line.partition(":") for line in lines) if name in FILTERS}
    return said.get("Seccomp_filters", said.get("Seccomp", 0))


def find_code_changes(pid: int, maker: int, filters: int = 0) -> list[str]:
    """What of the code that it was forked with a process has changed, a line each; ``filters`` of its system calls are
    the judge's. Raises OSError if the kernel does not say."""
    there = {at for at, _ in _ranges(Path(f"/proc/{maker}/maps").read_text(encoding="utf-8", errors="replace"))}
    now = dict(_ranges(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")))
    # One that is gone may be written to by now; the loader's own tables are where it notes whose stack is what.
    names = {at[2] for at in there if now.get(at, True) and not (at[1] == "r--p" and LOADER in at[2])}
    found = [f"the code of {Path(name).name} is written over" for name in sorted(names)]
    if _filters(pid) != _filters(maker) + filters:
        found.append("its system calls go through a filter of its own")
    return found
