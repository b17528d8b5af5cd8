"""An imaginary machine with round figures, and a reader of CPU times that says what a test wants."""

from __future__ import annotations

import dataclasses
import itertools

from kernelworks.measure.clock.noise import CpuTimes
from kernelworks.measure.peaks.survey import fingerprint
from kernelworks.records import Bandwidth, FlopRate, FunctionRate, GpuBandwidth, GpuPeaks, GpuRate, Peaks

MIB = 2**20
GPU_KIND = "sm_90-imaginary"


def record(**changes: object) -> Peaks:
    """Round figures of an imaginary machine."""
    rates = {"L1": 400.0, "L2": 200.0, "L3": 100.0, "DRAM": 40.0}
    kinds = {"read": 1.0, "copy": 1.0, "copy_nt": 1.5}
    base = Peaks(
        kind="x", name="x", fingerprint=fingerprint(), date="2026-01-01T00:00:00+00:00", cores=2,
        bandwidth=tuple(
            Bandwidth(
                level, 32 * MIB if level == "L3" else 4096, kind, threads,
                gbs * threads * (factor if level == "DRAM" or factor == 1 else 0.1),
            )
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


def gpu_record(**changes: object) -> GpuPeaks:
    """Round figures of an imaginary GPU: memory reads at 4000 GB/s once 64 MiB move, L2 at 8000."""
    cold = {"read": (1000.0, 4000.0, 4000.0), "write": (1000.0, 4000.0, 4400.0), "copy": (1000.0, 3000.0, 4000.0)}
    base = GpuPeaks(
        kind=GPU_KIND, name="Imaginary GPU", fingerprint="f", uuid="u", driver="1.2", power_limit_w=700.0,
        date="2026-01-01T00:00:00+00:00", multiprocessors=100, l2_bytes=50 * MIB, memory_bytes=100 << 30,
        bandwidth=(
            *(
                GpuBandwidth(kind, "cold", size * MIB, gbs)
                for kind, rates in cold.items()
                for size, gbs in zip((1, 64, 1024), rates, strict=True)
            ),
            GpuBandwidth("memcpy", "cold", 1024 * MIB, 4200.0),
            *(GpuBandwidth(kind, "warm", 16 * MIB, 8000.0) for kind in ("read", "write", "copy")),
            GpuBandwidth("read", "warm", 1024 * MIB, 4000.0),
        ),
        rates=(
            GpuRate("float32", "multiply-add", 60.0, 60.0), GpuRate("float32", "torch.mm", 50.0, 50.0),
            GpuRate("bfloat16", "torch.mm", 800.0, 650.0), GpuRate("tf32", "torch.mm", 400.0, 350.0),
        ),
        functions={"exp": 4000.0, "erf": 1000.0},
        launch_us=1.0, isolated_us=3.0, graph_us=0.5, host_launch_us=2.0, dispatch_us=4.0, round_trip_us=10.0,
        to_device_gbs=50.0, to_host_gbs=50.0, seconds=12.0, versions={"torch": "2"},
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
