"""Torch's own operators as they are registered, and those that somebody else has put a kernel to since: in the place of
one that was there, or before it, for whatever device, pass or mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["mark_operators", "replaced_operators"]

_C: Any = torch._C
INSTALLED_PATH = str(Path(torch.__file__).parents[1])
REGISTERED, BUILT_BELOW = "registered at ", "/build/aten/"
_marked: dict[str, str] = {}


def mark_operators() -> None:
    """Marks all that there are, for this process and those that are forked from it."""
    _marked.update((name, _C._dispatch_dump(name)) for name in _own_names())


def _own_names() -> Iterator[str]:
    return (name for name in _C._dispatch_get_all_op_names() if name.startswith("aten::"))


def _origins() -> tuple[str, ...]:
    """Where files lie that register kernels for everybody: what is installed, and where torch itself was built."""
    some = next(iter(_marked.values()), "")
    built = some.partition(BUILT_BELOW)[0].rpartition(REGISTERED)[2] if BUILT_BELOW in some else INSTALLED_PATH
    return INSTALLED_PATH, built


def replaced_operators() -> list[str]:
    """Operators with a kernel of somebody's, a line each."""
    if not _marked:
        mark_operators()
    theirs = tuple(f"{REGISTERED}{place}" for place in _origins())
    found = []
    for name, was in _marked.items():
        now = _C._dispatch_dump(name)
        if now == was:
            continue
        others = set(now.splitlines()) - set(was.splitlines())
        kernels = (line.partition(": ")[2] for line in others if "(inactive)" not in line)
        if any(said.startswith(REGISTERED) and not said.startswith(theirs) for said in kernels):
            found.append(f"{name} is another operator")
    return found
