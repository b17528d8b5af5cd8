"""The measured peaks of a CPU and of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.records.base import Record

__all__ = [
    "Bandwidth", "FlopRate", "FunctionRate", "GpuBandwidth", "GpuPeaks", "GpuRate", "Peaks", "name_with_threads",
]  # fmt: skip


def name_with_threads(what: str, threads: int) -> str:
    """A figure of so many threads, in words."""
    return f"{what}, {threads} thread{'s' if threads > 1 else ''}"


@dataclass(frozen=True)
class Bandwidth:
    """``kind`` is ``read``, ``copy`` or ``copy_nt`` (non-temporal stores); a copy counts bytes read and written."""

    level: str  # "L1", "L2", "L3", "DRAM"
    working_set_bytes: int  # per thread
    kind: str
    threads: int
    gbs: float

    @property
    def name(self) -> str:
        return name_with_threads(f"{self.level} {self.kind}", self.threads)


@dataclass(frozen=True)
class FlopRate:
    dtype: str  # "float32", "bfloat16", "int8"
    isa: str  # "scalar", "avx2", "avx512", "avx512_bf16"
    threads: int
    gflops: float

    @property
    def name(self) -> str:
        return name_with_threads(f"{self.dtype} {self.isa}", self.threads)


@dataclass(frozen=True)
class FunctionRate:
    function: str  # "exp", "tanh", "erf", "log"
    isa: str
    threads: int
    gops: float  # 10^9 results a second

    @property
    def name(self) -> str:
        return name_with_threads(f"{self.function} {self.isa}", self.threads)


@dataclass(frozen=True)
class Peaks(Record):
    """What one machine was measured to do."""

    kind: str  # Machine.kind
    name: str
    fingerprint: str  # of everything a peak depends on; a cache entry with another one is measured again
    date: str  # ISO 8601, UTC
    cores: int
    bandwidth: tuple[Bandwidth, ...]
    flops: tuple[FlopRate, ...]
    functions: tuple[FunctionRate, ...]
    dispatch_us: float  # torch's own floor: add(out=) of one element, no autograd
    fork_join_us: float  # an empty OpenMP parallel region on all threads
    page_fault_us: float  # first touch of one 4 KiB page of fresh memory
    foreign_share: float  # share of the cores that other processes took while this was measured
    versions: dict[str, str] = field(default_factory=dict)
    cache_bytes: dict[str, int] = field(default_factory=dict)  # "L1" and "L2" of one core, "L3" shared
    inferred: dict[str, str] = field(default_factory=dict)  # figures that follow from others, and why: see mending.py
    unknown: str = ""  # why nothing was measured: then there are no rates and no bandwidths


@dataclass(frozen=True)
class GpuBandwidth:
    """``kind`` is ``read``, ``write``, ``copy`` (kernels of ours) or ``memcpy`` (torch's ``copy_``).

    ``cache`` is ``warm``: one launch walks the same bytes again and again, so that they come from L2 where they fit;
    or ``cold``: one launch of that size after L2 was filled with other bytes, less the time of an empty launch.
    """

    kind: str
    cache: str
    bytes: int  # that one pass moves, of a copy those read and those written: the working set
    gbs: float

    @property
    def name(self) -> str:
        return f"{self.kind} {self.cache}, {self.bytes} bytes"


@dataclass(frozen=True)
class GpuRate:
    """Arithmetic of one dtype. ``sustained`` is the rate after a second of it, when power limits the clock;
    ``benchmarked`` that of calls which are timed one by one for some tenths of a second, the better side's: 0 where
    nobody did."""

    dtype: str  # "bfloat16", "float16", "tf32", "float32", "float8_e4m3fn"
    unit: str  # "multiply-add" (a kernel of ours), "torch.mm", "torch._scaled_mm"
    burst_tflops: float
    sustained_tflops: float
    benchmarked_tflops: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.unit}"


@dataclass(frozen=True)
class GpuPeaks(Record):
    """What one GPU was measured to do. All on one stream; host times with the GPU idle."""

    kind: str  # Gpu.kind
    name: str
    fingerprint: str  # of everything a peak depends on, as in Peaks
    uuid: str
    driver: str
    power_limit_w: float
    date: str  # ISO 8601, UTC
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    bandwidth: tuple[GpuBandwidth, ...]
    rates: tuple[GpuRate, ...]
    functions: dict[str, float]  # 10^9 float32 results a second: "exp", "log", "erf", "rsqrt"
    launch_us: float  # an empty kernel behind many others in a stream: what one more takes
    isolated_us: float  # an empty kernel between two events on an idle GPU: what any launch so timed takes more
    graph_us: float  # one more empty kernel inside a replayed graph
    host_launch_us: float  # host time of a launch by build.launcher
    dispatch_us: float  # host time of torch's add(out=) of one element
    round_trip_us: float  # host time of an empty kernel and the wait for it
    to_device_gbs: float  # from pinned memory
    to_host_gbs: float  # to pinned memory
    seconds: float  # that measuring took
    versions: dict[str, str] = field(default_factory=dict)
    inferred: dict[str, str] = field(default_factory=dict)  # as in Peaks
    unknown: str = ""  # as in Peaks
    foreign_share: float = 0.0  # of the time in which other processes had kernels on the GPU, right before or after
