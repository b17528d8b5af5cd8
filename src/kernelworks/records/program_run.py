"""What ran in one run of a program: the time of each module, when each operator ran, and the source at its calls."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceSpans", "ModuleTime", "ModuleTree", "OperatorSpans", "SourceLines"]


@dataclass(frozen=True)
class SourceLines:
    """Some lines of a file, as they were when the program ran."""

    first: int  # the number of the first of them
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ModuleTime:
    """One module of the program. Modules that differ by an index alone are one: ``encoder.layer.*``."""

    path: str  # as in ``Hotspot.module``; "" is what ran outside every module
    instances: int  # how many modules fell together
    seconds: float  # with the modules in it
    own_s: float  # without them
    least_s: float  # of one instance, with the modules in it
    most_s: float
    slowest: str  # the path of the instance that took most


@dataclass(frozen=True)
class ModuleTree:
    """The time of every module that ran something; a module comes after the one it is in. All ``own_s`` add to the wall
    clock."""

    modules: tuple[ModuleTime, ...]
    version: int = 1


@dataclass(frozen=True)
class DeviceSpans:
    """The kernels and copies of a GPU, in columns."""

    starts_ns: tuple[int, ...]  # after the first operator's start
    lengths_ns: tuple[int, ...]
    streams: tuple[int, ...]
    names: tuple[int, ...]  # indices into ``texts``
    texts: tuple[str, ...]
    hotspots: tuple[int, ...]  # indices into ``Diagnosis.hotspots``, -1 for what no operator launched


@dataclass(frozen=True)
class OperatorSpans:
    """When each operator of one profiled run began and how long it took, in columns, by its beginning. The profiler's
    own time is in them: they add to more than the wall clock of a run without it."""

    starts_ns: tuple[int, ...]  # after the first operator's
    lengths_ns: tuple[int, ...]
    hotspots: tuple[int, ...]  # indices into ``Diagnosis.hotspots``
    device: DeviceSpans | None = None
    left_out: int = 0  # spans after the last of these
    version: int = 1
