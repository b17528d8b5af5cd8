"""Plain records that pass between the packages: what was measured, verified and found. No logic, no torch, JSON both
ways.

Units are in the names: ``_s`` seconds, ``_us`` microseconds, ``gbs`` GB/s (10^9), ``gflops`` GFLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelworks.records.base import Record, renderer
from kernelworks.records.fix import Fix
from kernelworks.records.json_text import from_json, to_document, to_json
from kernelworks.records.peaks import (
    Bandwidth,
    FlopRate,
    FunctionRate,
    GpuBandwidth,
    GpuPeaks,
    GpuRate,
    Peaks,
    name_with_threads,
)  # fmt: skip
from kernelworks.records.program_run import ModuleTree, OperatorSpans, SourceLines

__all__ = [
    "AutotuneResult",
    "AutotunedCall",
    "Bandwidth",
    "BenchResult",
    "ConfigCandidate",
    "ConfigTuning",
    "CounterCheck",
    "Diagnosis",
    "Fix", "FlopRate", "FunctionRate",
    "GpuBandwidth", "GpuPeaks", "GpuRate", "GpuTime",
    "Hotspot",
    "KernelTime",
    "MapKernel",
    "MapOp",
    "Parity",
    "Peaks",
    "SwapRecord",
    "Variant",
    "Verification",
    "from_json",
    "name_with_threads",
    "to_document",
    "to_json",
]  # fmt: skip

# ---------------------------------------------------------------- verifications


@dataclass(frozen=True)
class Parity:
    """One case of one row against float64. ``worst`` is the largest error as a share of the bound; over 1 fails."""

    op: str
    kernel: str
    pass_: str  # "forward" or "backward"
    case: str
    dtype: str
    worst: float
    ok: bool
    message: str = ""  # empty, or what went wrong
    reproduce: str = ""  # one shell line that shows it again
    shares: dict[str, float] = field(default_factory=dict)  # the same by output, of those that may be off at all


@dataclass(frozen=True)
class Verification(Record):
    """All that was tried on one row. ``certified`` says whether a certificate was written."""

    op: str
    kernel: str
    kind: str
    cases: int
    worst: float
    worst_case: str
    failures: tuple[Parity, ...]
    mutants_rejected: int
    mutants: int
    checks: dict[str, bool]  # "guard_pages", "inputs_untouched", "deterministic", "two_threads", "gradients", ...
    seconds: float
    certified: bool
    verified_on: str = ""  # of a confirmation: the kind of CPU whose verification it carries over
    worst_by_dtype: dict[str, dict[str, float]] = field(default_factory=dict)  # and by output; none of exact ones


# ---------------------------------------------------------------- choices


@dataclass(frozen=True)
class Explanation(Record):
    """What the dispatcher would do with one call, and why. Times are None until this machine's peaks are known."""

    op: str
    call: str  # "x bfloat16[1, 1024], weight bfloat16[1024], eps 1e-06"
    kernel: str
    because: str
    declined: tuple[tuple[str, str], ...]  # (row, reason) for every row that was looked at before
    threads: int
    flop: float
    bytes: float
    bound_us: float | None = None
    predicted_us: float | None = None
    bottleneck: str = ""
    peak: str = ""
    device: str = "cpu"
    through_python: str = ""  # why calls go through Python; "" where they go through C++
    compiled: tuple[str, ...] = ()  # what backend="kernelworks" did with such calls in this process
    assumed: str = ""  # what work, bound and prediction take to be so of values that hold no data: "if every ..."


# ---------------------------------------------------------------- benches


@dataclass(frozen=True)
class Variant:
    name: str  # "eager", "inductor", "kernelworks", "avx512", a baseline's name
    median_us: float
    low_us: float  # 10th percentile
    high_us: float  # 90th percentile
    samples: int
    share_of_bound: float | None = None  # T_min / T
    worst: float | None = None  # its largest error on these inputs, as a share of the contract's bound
    host_us: float | None = None  # on a GPU: host time of a call while the GPU need not be waited for


@dataclass(frozen=True)
class BenchResult(Record):
    """One case, all variants interleaved in one run. ``gate`` is empty when every variant was right on these very
    inputs: ours within the contract's bound, a baseline close enough to be the same op (its error stands in
    ``Variant.worst``)."""

    op: str
    case: str
    dtype: str
    threads: int
    cache: str  # "warm" or "cold"; on a GPU always cold: L2 was overwritten before each call
    flop: float
    bytes: float
    bound_us: float
    bottleneck: str
    variants: tuple[Variant, ...]
    chosen: str  # the row that dispatch takes
    gate: str
    thrown: int  # noisy windows thrown away
    notes: tuple[str, ...] = ()  # what a reader must know beside the figures
    device: str = "cpu"  # or "cuda"; there one variant is "copy", a device copy of the same bytes
    rough: str = ""  # what others took of the machine, where figures were asked for all the same: each is rough


# ---------------------------------------------------------------- tuning


@dataclass(frozen=True)
class ConfigCandidate:
    """One configuration of one kernel. Times are None where it was wrong: then it was not benchmarked."""

    set: dict[str, Any]
    worst: float | None  # its largest error as a share of the bound
    wrong: str  # "" where it is right
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None


@dataclass(frozen=True)
class ConfigTuning(Record):
    """One kernel at one size: what was tried, what is used today and what is to be used."""

    op: str
    op_kernel: str
    kernel: str
    case: str
    dtype: str
    dims: dict[str, int]  # what the row picks its configuration by
    candidates: tuple[ConfigCandidate, ...]
    used: dict[str, Any]
    chosen: dict[str, Any]


# ---------------------------------------------------------------- choices that were settled


@dataclass(frozen=True)
class AutotunedCall:
    """One kind of call of one op: what was benchmarked for it, and what it takes from now on.

    ``what`` is ``forward``, ``forward + backward`` or ``backward``; of the last two, which are one choice, both must be
    won. Times are medians, ``ratio`` is torch over ours in the half of the race that says less.
    """

    op: str
    what: str
    call: str
    kernel: str  # that was benchmarked; "" where none could be
    taken: str  # that row, or "torch"
    why: str
    torch_us: float = 0.0
    ours_us: float = 0.0
    ratio: float = 0.0
    spread: float = 0.0
    rounds: int = 0  # 0 where it was not benchmarked now
    seconds: float = 0.0  # that the race took


@dataclass(frozen=True)
class AutotuneResult(Record):
    """What ``autotune`` found: the calls in the order in which the program made them first."""

    kinds: tuple[str, ...]  # of machine: the CPU's, and the GPU's where it took part
    threads: int
    calls: tuple[AutotunedCall, ...]
    seconds: float
    kept: str = ""  # where the timings are; "" where they could not be written, and hold for this process alone
    notes: tuple[str, ...] = ()
    configs: tuple[ConfigTuning, ...] = ()  # with ``configs``: what was tried before the race
    verifications: tuple[Verification, ...] = ()  # of the kernels whose table of configurations was written

    def __str__(self) -> str:
        return str(renderer().text(self))


# ---------------------------------------------------------------- the kernel map


@dataclass(frozen=True)
class MapKernel:
    """One row of an op, on this machine."""

    name: str
    target: str
    certificate: str  # date of the certificate that holds on ``kind``, "" without one
    reason: str  # why the row is not chosen there, "" where it may be
    worst: float | None = None  # the certificate's worst error as a share of the bound
    share_of_bound: float | None = None  # T_min / T, median over the benches at hand
    ratio: float | None = None  # best baseline's time / this row's time, median over the same benches
    baseline: str = ""  # the baseline that was best most often
    kind: str = ""  # of machine that the certificate is for: this CPU or its GPU, where it has none a GPU's that ships
    worst_by_dtype: dict[str, float] = field(default_factory=dict)  # the certificate's, in each dtype over its outputs
    losses: tuple[str, ...] = ()  # the cases of those benches in which a baseline was faster by over 3%


@dataclass(frozen=True)
class MapOp(Record):
    op: str
    family: str
    formula: str
    source: str
    kernels: tuple[MapKernel, ...]
    op_package: str = ""  # its folder, from the package's own
    calls: tuple[str, ...] = ()  # how it is called: in its own way, and as torch's function is, where there is one
    derived: tuple[tuple[str, str], ...] = ()  # what its form made, where it has one: the part, and what came of it
    expressions: tuple[tuple[str, str], ...] = ()  # of an entry of a table: what each is of, and the expression
    exercises: tuple[str, ...] = ()  # of `kernelworks learn`, in which it is written


# ---------------------------------------------------------------- diagnosis


@dataclass(frozen=True)
class Hotspot:
    """Calls of one op from one place in the program."""

    op: str
    module: str  # dotted path in the model, "" outside one
    source: str  # "file.py:123"
    shapes: str
    calls: int
    seconds: float  # all calls of one run of the program
    share: float  # of the wall clock
    bottleneck: str
    peak: str  # "DRAM read 83 GB/s"; "" when unmodelled
    achieved: float | None  # T_min / T, at most 1
    low_s: float  # time that the optimization at hand is predicted to give back, cautious and hopeful
    high_s: float
    action: str
    flop: float
    bytes: float
    modelled: bool
    parts: dict[str, float] = field(default_factory=dict)  # by part of the time breakdown; they add to `seconds`
    kernels: tuple[str, ...] = ()  # on a GPU: what its calls launched
    allows_s: float = 0.0  # the gain at its roofline, by whatever means; never less than `high_s`
    op_kernel: str = ""  # "kw.linear: avx512": the row that its calls would take once swapped
    optimization: str = ""  # that its action names, if a fix tries it
    applied: bool = False  # by the fix: what is recoverable here is part of its gain
    unknown_gain: bool = False  # a kernel of kernelworks could serve it and was not benchmarked: not 0, but unknown
    code: SourceLines | None = None  # around `source`
    layers: str = ""  # which modules those of `module` are, if they are few: "features.4, .8"


@dataclass(frozen=True)
class KernelTime:
    """One kind of kernel from one op, in one run of the program on a GPU."""

    name: str
    op: str  # the innermost op that launched it
    runs: int
    seconds: float
    bound_s: float  # what its work takes at least; never more than `seconds`
    bottleneck: str  # "memory L2" where the cache served its bytes
    flop: float
    bytes: float


@dataclass(frozen=True)
class CounterCheck:
    """One run of a kernel under Nsight Compute, L2 empty before it, beside our model of its work."""

    name: str
    op: str
    seconds: float  # as the counters have it
    model_flop: float
    counted_flop: float | None  # of the matrix units; None for a kernel that is no product
    model_read_bytes: float
    memory_read_bytes: float  # from device memory
    memory_written_bytes: float  # what had left L2 when the kernel ended
    l2_bytes: float  # through L2


@dataclass(frozen=True)
class GpuTime:
    """How a program used its GPU, in seconds of one run. The two halves of each pair below add to the wall clock."""

    busy_s: float
    idle_s: float
    critical_device_s: float  # of the critical path, in kernels
    critical_host_s: float  # in the host and its launches
    without_waits_s: float  # what the run would take if only its last wait were left, replayed
    without_host_s: float  # and if the host took no time, as from a CUDA graph
    kernels: tuple[KernelTime, ...] = ()  # longest first
    counters: tuple[CounterCheck, ...] = ()


@dataclass(frozen=True)
class Diagnosis(Record):
    program: str
    sentence: str
    wall_s: float
    hotspots: tuple[Hotspot, ...]
    time_breakdown: dict[str, float]  # seconds by part, in order; they add to wall_s
    unmodelled: tuple[str, ...]
    findings: tuple[str, ...]
    threads: int
    peaks: Peaks | GpuPeaks
    versions: dict[str, str]
    date: str
    fix: Fix | None = None
    gpu: GpuTime | None = None
    ambiguous: str = ""  # what others took of the machine, where that was too much for figures
    rough: bool = False  # figures were asked for all the same: each is rough
    walls_s: tuple[float, ...] = ()  # of the timed runs, of which `wall_s` is the median
    clauses: tuple[str, ...] = ()  # what `sentence` says of the program as it is, one fact each
    alarms: tuple[str, ...] = ()  # slow paths that the program takes without need, with what each costs here
    disturbed: str = ""  # what others took of the machine, if the figures are rough
    notes: tuple[str, ...] = ()  # on the measurement itself: runs that were discarded, what the process was left with
    command: tuple[str, ...] = ()  # what stands after ``kernelworks diagnose``, without its options; () from Python
    options: tuple[str, ...] = ()  # those of the command, as they were given; () from Python
    unfixed: bool = False  # a fix was asked for, and nothing was tried
    interrupted: bool = False  # by Ctrl-C: this is what was measured until then
    magic: tuple[str, ...] = ()  # of a notebook: "%diagnose" or "%%diagnose", and the statement behind its options
    modules: ModuleTree | None = None
    spans: OperatorSpans | None = None


@dataclass(frozen=True)
class SwapRecord(Record):
    """What a swap did to a model, in the words of ``Swap.lines``."""

    lines: tuple[str, ...]
    replaced: tuple[dict[str, Any], ...]  # path, type, kind, ops
    left: tuple[dict[str, Any], ...]  # path, type, reason
