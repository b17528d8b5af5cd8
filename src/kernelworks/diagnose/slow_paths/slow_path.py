"""What a slow path is, and what looks for one while the program runs once more."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernelworks.diagnose.sites.functions import LIBRARIES

__all__ = ["SlowPath", "Watcher", "line_of_program", "replaced_attribute", "seconds_of"]

ENOUGH_S, MOST_TIMES = 0.02, 9  # of one thing that is timed


@dataclass(frozen=True)
class SlowPath:
    """``text`` says what is slow, how much, and what to do. ``lost_s`` is about what it costs a run."""

    text: str
    lost_s: float


class Watcher:
    """Sees one run of the program. What it does not override is not watched. It changes nothing of the program."""

    def functions(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Before a function of torch's is called from Python."""

    def results(self, function: Callable[..., Any], result: Any) -> None:
        """What it returned."""

    def modules(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Before a module is called."""

    def outputs(self, module: nn.Module, output: Any) -> None:
        """What it returned."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around the run."""
        yield

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        """After the run, of a program that takes so many seconds. It may time a few small things."""
        yield from ()


@contextlib.contextmanager
def replaced_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of a module or a class is another meanwhile."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def seconds_of(run: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """The least of some runs of a small thing, after one that is not counted."""
    run(*args, **kwargs)
    begun, found = time.perf_counter(), list[float]()
    while len(found) < MOST_TIMES and (not found or time.perf_counter() - begun < ENOUGH_S):
        start = time.perf_counter()
        run(*args, **kwargs)
        found.append(time.perf_counter() - start)
    return min(found)


def line_of_program() -> str:
    """The innermost line of the program's own that is being run; "" if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*LIBRARIES, "<")):
            return f"{file.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
