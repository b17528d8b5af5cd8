"""What a trace that somebody else recorded tells: where its time went, and what it cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.records.base import Record

__all__ = ["TraceDiagnosis", "TraceHotspot", "TraceKernel"]


@dataclass(frozen=True)
class TraceHotspot:
    """The outermost calls of one op from one place. ``seconds``: its kernels', or its own if there is no GPU."""

    op: str
    module: str  # "Linear_0", the innermost module, where the trace has stacks
    source: str  # "file.py:123", where the trace has stacks
    shapes: str  # of one call, where the trace has shapes
    calls: int
    seconds: float
    host_s: float  # of the thread that called it
    share: float  # of the wall clock
    kernels: tuple[str, ...] = ()
    flop: float | None = None  # of all calls; None where shapes are missing or no formula is known
    bytes: float | None = None
    bottleneck: str = ""  # "" where the machine's measured peaks are not at hand
    peak: str = ""
    achieved: float | None = None  # the least time at the peak, over the time taken


@dataclass(frozen=True)
class TraceKernel:
    """One kind of kernel. ``achieved`` is the share of the peak that the recording tool gives, where it gives one."""

    name: str
    op: str
    runs: int
    seconds: float
    bottleneck: str = ""
    achieved: float | None = None


@dataclass(frozen=True)
class TraceDiagnosis(Record):
    """``time_breakdown`` adds to ``wall_s``; it is empty where a file holds sums and no timeline."""

    file: str
    format: str  # "torch.profiler", "Nsight Systems", "Nsight Compute"
    sentence: str
    wall_s: float
    time_breakdown: dict[str, float]
    hotspots: tuple[TraceHotspot, ...]
    kernels: tuple[TraceKernel, ...]
    steps: tuple[float, ...] = ()  # seconds of each
    devices: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # what the file cannot tell
    events: int = 0
    skipped: int = 0  # events that made no sense
    versions: dict[str, str] = field(default_factory=dict)
