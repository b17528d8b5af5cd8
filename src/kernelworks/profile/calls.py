"""One op of a program's run, as the profiler saw it: what it was given, where it was made, what it called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelworks.profile.inductor_code import Kernel

__all__ = ["FUNCTION", "Call", "DeviceWork", "Place", "Runtime", "fold"]

FUNCTION = 0  # at::RecordScope


def fold(path: str) -> str:
    """A module's path with every index replaced by ``*``, so that equal layers fall together."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program a call was made."""

    module: str = ""  # dotted path of the innermost module, list indices as "*"
    source: str = ""  # "file.py:123", the innermost line outside torch
    faults: int = 0  # minor page faults during the call
    path: str = ""  # the dotted path with its indices
    words: tuple[tuple[str, str], ...] = ()  # strings that an op of ours was given, which the profiler does not record
    function: Call | None = field(default=None, compare=False)  # of torch's, that it is made in (``functions``)
    file: str = field(default="", compare=False)  # the whole path of the file of ``source``, "" if it is not known


@dataclass(slots=True)
class Call:
    """One op with the ops that it called. Times in ns; shapes and the like only from a survey pass.

    ``shapes`` and ``strides`` hold a list of sizes per argument, a list of lists for a list of tensors, and [] for
    anything else; ``dtypes`` a torch dtype per tensor argument, else None; ``scalars`` the numbers and lists of
    numbers: calls that are alike share them. The profiler's tree tells the rest (``inputs``): ``pointers`` a storage
    address per tensor argument, ``tensors`` which tensor it is, ``storage_bytes`` the bytes of its storage, of an
    outermost op alone; ``listed`` the dtype of the tensors in lists; ``made`` address and bytes of each storage that
    the call allocated and left behind.
    """

    name: str
    start: int
    end: int
    scope: int = FUNCTION
    overload: str = ""
    sequence: int = -1
    shapes: list[Any] = field(default_factory=list)
    strides: list[Any] = field(default_factory=list)
    dtypes: list[torch.dtype | None] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    pointers: list[Any] = field(default_factory=list)
    listed: torch.dtype | None = None
    tensors: list[Any] = field(default_factory=list)
    storage_bytes: list[Any] = field(default_factory=list)
    made: tuple[tuple[int, int], ...] = ()
    items: list[Any] | None = None  # what ``work.Arguments`` has made of them
    children: list[Call] = field(default_factory=list)
    place: Place = Place()
    backward: bool = False
    recorded: bool = False  # a backward of it ran
    freed: int = 0  # bytes of large blocks given back since the call before
    correlation: int = 0  # by which what the device did for the call names it
    runtime: list[Runtime] = field(default_factory=list)  # calls of the device's driver made in it or below
    like: int = 0  # the same number for calls that have their shapes of one call of the survey
    graph: str = ""  # the run of a compiled graph that it is part of
    kernel: Kernel | None = None  # that inductor wrote, if the call is one of it

    @property
    def display_name(self) -> str:
        """The op's name in a table."""
        return self.kernel.display_name if self.kernel is not None else self.name.removeprefix("aten::")

    @property
    def events(self) -> int:
        """How many events the profiler recorded for this call, itself included."""
        return 1 + sum(child.events for child in self.children)

    @property
    def everything(self) -> Iterator[Call]:
        """The call and all below it, in the order in which they start."""
        yield self
        for child in self.children:
            yield from child.everything

    @property
    def correlations(self) -> list[int]:
        return [call.correlation for call in self.everything]

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the call and of those under it: what two passes are matched by."""
        return (self.name, *(name for child in self.children for name in child.key))


@dataclass(slots=True)
class DeviceWork:
    """A kernel, copy or fill that a GPU did. Times in ns, on the host's clock. ``call`` is what it was done for, if
    that is not the call that launched it: one of CUDA's graphs does the work of many."""

    name: str
    start: int
    end: int
    stream: int
    call: Call | None = None

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass(slots=True)
class Runtime:
    """A call of the GPU's driver or runtime (``cudaLaunchKernel``), with what the device did for it.

    ``inner`` is the place of the innermost op that made it among the outermost op and all below it, in the order in
    which they start (the outermost is 0).
    """

    name: str
    start: int
    end: int
    works: list[DeviceWork] = field(default_factory=list)
    inner: int = 0
