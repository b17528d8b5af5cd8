"""Device time between CUDA events, each run after L2 was filled with other bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelworks.machine import Gpu

__all__ = ["Evictor", "cuda_event", "seconds_between", "timed_cold"]

MIB = 1 << 20


def cuda_event() -> Any:
    event: Any = torch.cuda.Event  # without annotations
    return event(enable_timing=True)


def seconds_between(pairs: list[tuple[Any, Any]]) -> list[float]:
    """Seconds from first to second event of each pair."""
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


def timed_cold(run: Callable[[], object], evict: Callable[[], object], samples: int) -> list[float]:
    """Seconds of each of ``samples`` runs, each after ``evict``, which also gives the host time to queue the run."""
    pairs = []
    for _ in range(samples):
        evict()
        begin, end = cuda_event(), cuda_event()
        begin.record()
        run()
        end.record()
        pairs.append((begin, end))
    return seconds_between(pairs)


class Evictor:
    """Called, it reads more than L2 holds: what is left there is clean, so that no launch pays for another one's
    writes."""

    def __init__(self, here: Gpu) -> None:
        from kernelworks.measure.clock import gpu_kernels as kernels

        self.read, self.programs = kernels.READ, 4 * here.multiprocessors
        self.tiles = -(-max(2 * here.l2_bytes, 128 * MIB) // 4 // kernels.TILE // 16) * 16
        self.buffer = torch.zeros(self.tiles * kernels.TILE, device="cuda")
        self.sums = torch.empty(self.programs, device="cuda")

    def __call__(self) -> None:
        self.read((self.programs, 1, 1), self.buffer, self.sums, self.tiles, 1)
