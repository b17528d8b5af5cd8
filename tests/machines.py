"""An imaginary machine with round figures, and a reader of CPU times that says what a test wants."""

from __future__ import annotations

import dataclasses
import itertools

from kernelworks.ceilings.quiet import CpuTimes
from kernelworks.ceilings.survey import fingerprint
from kernelworks.records import Bandwidth, Ceilings, FlopRate, FunctionRate

MIB = 2**20


def record(**changes: object) -> Ceilings:
    """Round figures of an imaginary machine."""
    rates = {"L1": 400.0, "L2": 200.0, "L3": 100.0, "DRAM": 40.0}
    kinds = {"read": 1.0, "copy": 1.0, "copy_nt": 1.5}
    base = Ceilings(
        kind="x", name="x", fingerprint=fingerprint(), date="2026-01-01T00:00:00+00:00", cores=2,
        bandwidth=tuple(
            Bandwidth(level, 4096, kind, threads, gbs * threads * (factor if level == "DRAM" or factor == 1 else 0.1))
            for (level, gbs), (kind, factor), threads in itertools.product(rates.items(), kinds.items(), (1, 2))
        ),
        flops=tuple(
            FlopRate(dtype, isa, threads, gflops * threads)
            for dtype, isa, gflops in (
                ("float32", "scalar", 10.0), ("float32", "avx2", 100.0), ("float32", "avx512", 200.0),
                ("bfloat16", "avx512_bf16", 400.0),
            )
            for threads in (1, 2)
        ),
        functions=tuple(
            FunctionRate("exp", isa, threads, gops * threads)
            for isa, gops in (("scalar", 0.5), ("avx512", 5.0))
            for threads in (1, 2)
        ),
        dispatch_us=1.0, fork_join_us=0.4, page_fault_us=1.0, foreign_share=0.01,
        cache_bytes={"L1": 48 * 1024, "L2": MIB, "L3": 32 * MIB},
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


class Busy:
    """A reader of CPU times in which others use given shares of two cores, one share a window."""

    def __init__(self, *shares: float) -> None:
        self.shares = itertools.chain(shares, itertools.repeat(shares[-1]))
        self.wall, self.busy, self.own, self.reads = 0.0, 0.0, 0.0, 0

    def __call__(self) -> CpuTimes:
        if self.reads % 2:  # a window ends: ten seconds, one of our own
            self.wall += 10.0
            self.own += 1.0
            self.busy += 1.0 + next(self.shares) * 20.0
        self.reads += 1
        return CpuTimes(self.wall, self.busy, self.own, 2)
