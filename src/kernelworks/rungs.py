"""Plain records of ladders: what a climb measured, and one tile's journey. No logic, JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records import Ceilings

__all__ = ["Climb", "Journey", "Move", "RungResult", "RungTime"]


@dataclass(frozen=True)
class RungTime:
    """One rung at one thread count, raced in alternation with the rung before, the peers and the multipliers."""

    threads: int
    size: dict[str, int]  # a slow rung is timed on fewer rows
    median_s: float
    low_s: float  # 10th percentile
    high_s: float  # 90th percentile
    samples: int
    gflops: float
    ceiling_gflops: float  # the multiply-add rate: the higher of the machine's and the one seen in this race
    peers: dict[str, float]  # GFLOP/s by name, in the same race
    before_gflops: float | None  # the rung before, in the same race
    thrown: int  # noisy windows thrown away


@dataclass(frozen=True)
class RungResult:
    """``status`` is "proved", "wrong", "not run" or "ambiguous" (right, but the machine was too busy for a figure).
    Only "proved" has times; ``reason`` says why there are none."""

    number: int
    file: str
    sha256: str  # of the rung's source
    title: str
    target: str
    hypothesis: str
    next: str
    predicted: float | None  # times the rate of the rung before; stated in the source
    status: str
    reason: str
    worst: float | None  # largest error as a share of the bound
    times: tuple[RungTime, ...]
    gain: float | None  # what it was
    loads: dict[str, float]  # bytes each multiply-add moves, by level
    shares: dict[str, float]  # of the time, what each ceiling explains: "multiply-adds", "L1", ...
    regime: str
    assembly: tuple[str, ...]


@dataclass(frozen=True)
class Climb:
    ladder: str
    title: str
    size: dict[str, int]
    flop: float
    bytes: float  # compulsory
    lessons: str  # the library's file that took the last rung's ideas
    date: str
    commit: str
    versions: dict[str, str]
    ceilings: Ceilings
    rungs: tuple[RungResult, ...]
    notes: tuple[str, ...]
    seconds: float  # the whole climb


@dataclass(frozen=True)
class Move:
    """One kind of trip between two neighbouring levels of the memory pyramid."""

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
