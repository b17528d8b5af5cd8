"""The roofline's numbers, read off the ceilings: one slope per memory level, one flat roof per dtype, ridge points."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records import Bandwidth, Ceilings

__all__ = ["LEVELS", "Ridge", "Roof", "bandwidth", "best_flops", "ridges", "slopes", "thread_counts"]

LEVELS = ("L1", "L2", "L3", "DRAM")


@dataclass(frozen=True)
class Roof:
    """The best measured rate of one dtype: name, instruction set, GFLOP/s."""

    dtype: str
    isa: str
    gflops: float


@dataclass(frozen=True)
class Ridge:
    """Where a slope meets a roof: from this many flop per byte on, compute is the limit and not this memory level."""

    level: str
    dtype: str
    flop_per_byte: float


def thread_counts(ceilings: Ceilings) -> list[int]:
    return sorted({b.threads for b in ceilings.bandwidth})


def bandwidth(ceilings: Ceilings, level: str, kind: str, threads: int) -> Bandwidth | None:
    found = (b for b in ceilings.bandwidth if (b.level, b.kind, b.threads) == (level, kind, threads))
    return next(found, None)


def slopes(ceilings: Ceilings, threads: int) -> dict[str, float]:
    """Read bandwidth in GB/s by level, from L1 outwards."""
    found = {level: bandwidth(ceilings, level, "read", threads) for level in LEVELS}
    return {level: item.gbs for level, item in found.items() if item is not None}


def best_flops(ceilings: Ceilings, threads: int) -> list[Roof]:
    """The best rate of each dtype over the instruction sets, lowest first."""
    best: dict[str, Roof] = {}
    for rate in ceilings.flops:
        if rate.threads == threads and (rate.dtype not in best or rate.gflops > best[rate.dtype].gflops):
            best[rate.dtype] = Roof(rate.dtype, rate.isa, rate.gflops)
    return sorted(best.values(), key=lambda roof: roof.gflops)


def ridges(ceilings: Ceilings, threads: int) -> list[Ridge]:
    """Every slope with every roof."""
    return [
        Ridge(level, roof.dtype, roof.gflops / gbs)
        for roof in best_flops(ceilings, threads)
        for level, gbs in slopes(ceilings, threads).items()
        if gbs > 0
    ]
