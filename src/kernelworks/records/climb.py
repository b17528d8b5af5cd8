"""Plain records of ladders: what a climb measured, and one tile's journey. No logic, JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records.base import Record

__all__ = ["Climb", "Journey", "Move", "RungResult", "RungTime"]


@dataclass(frozen=True)
class RungTime:
    """One rung at one thread count and size, benchmarked in alternation with the rung before and the baselines.

    All rates are in the climb's ``unit`` and of the work of this rung: so the ratio of two is one of times, also where
    a baseline or the rung before reads its inputs in another format.
    """

    threads: int  # 0 on a GPU
    size: dict[str, int]  # a slow rung is timed on fewer rows; the last rung also at further sizes
    median_s: float
    low_s: float  # 10th percentile
    high_s: float  # 90th percentile
    samples: int
    rate: float
    peak: float  # what the machine was measured to do: multiply-adds, matrix units, or reads of memory
    baselines: dict[str, float]  # by name, in the same race
    before: float | None  # the rung before, in the same race
    thrown: int  # noisy windows thrown away
    rough: bool = False  # none was quiet, and figures were asked for all the same: from the least to the most


@dataclass(frozen=True)
class RungResult:
    """``status`` is "verified", "wrong", "not run" or "ambiguous" (right, but the machine was too busy for a figure).
    Only "verified" has times; ``reason`` says why there are none."""

    number: int
    file: str
    sha256: str  # of the rung's source
    title: str
    target: str  # what it is compiled for
    hypothesis: str
    next: str
    predicted: float | None  # times as quick as the rung before; stated in the source
    status: str
    reason: str
    worst: float | None  # largest error as a share of the bound
    times: tuple[RungTime, ...]  # the problem's own size first, least threads first, then further sizes
    gain: float | None  # what it was: at the problem's own size, with the most threads
    loads: dict[str, float]  # bytes each multiply-add moves, by level
    shares: dict[str, float]  # of the time, what each peak explains: "multiply-adds", "L1", ...
    bottleneck: str
    assembly: tuple[str, ...]  # of the loop with the arithmetic
    language: str = "cpp"  # or "cu", or "py": Triton
    format: str = ""  # of the inputs, where a rung has its own
    multiples: dict[str, int] = field(
        default_factory=dict
    )  # what the sizes must be multiples of; others are not verified
    skipped: int = 0  # verification sizes that are no such multiples
    launch: dict[str, int] = field(default_factory=dict)  # GPU: threads, blocks, cluster, tile_rows, workspace, ...
    resources: dict[str, int] = field(default_factory=dict)  # GPU: registers, shared_bytes, loop_stalls, ...
    instructions: dict[str, int] = field(default_factory=dict)  # GPU: of the hot loop, by mnemonic; the decisive ones
    counters: dict[str, float] = field(default_factory=dict)  # of one launch, by the counter's plain name


@dataclass(frozen=True)
class Climb(Record):
    ladder: str
    title: str
    size: dict[str, int]
    flop: float
    bytes: float  # compulsory, of the problem's own format
    lessons: str  # the library's file that took the last rung's ideas
    date: str
    commit: str
    versions: dict[str, str]
    peaks: Peaks | GpuPeaks
    rungs: tuple[RungResult, ...]
    notes: tuple[str, ...]
    seconds: float  # the whole climb
    device: str = "cpu"  # or "cuda"
    unit: str = "GFLOP/s"  # or "GB/s"
    arithmetic: str = "float32"  # what the multiply-adds of the peak take: "float32", "bfloat16"
    peak: str = ""  # what the rates are held against, in words
    baselines: dict[str, str] = field(default_factory=dict)  # what each baseline is, in words
    problem: str = ""  # SHA-256 of problem.py


@dataclass(frozen=True)
class Move:
    """One kind of trip between two neighbouring levels of the memory hierarchy."""

    what: str  # "a panel of A"
    source: str
    to: str
    shape: tuple[int, int]
    bytes: int  # of one trip
    trips: int  # in the whole product
    uses: int  # multiply-adds that each element takes part in before it leaves


@dataclass(frozen=True)
class Journey:
    """A blocked product C[M, N] = A[M, K] B[K, N] of float32, counted. ``intensity`` is flop per byte by boundary."""

    size: dict[str, int]
    tile: tuple[int, int]  # rows and columns of C in registers
    block: tuple[int, int]  # steps of k and columns of B that stay near
    flop: int
    moves: tuple[Move, ...]
    intensity: dict[str, float]
