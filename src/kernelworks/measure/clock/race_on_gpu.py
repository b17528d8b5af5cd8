"""The race on a GPU: all variants in turn between CUDA events, each call after L2 was filled with other bytes.

As on the CPU the variants are interleaved and their order is turned round every time. The filling reads, so that no
variant pays for writing back what another one left in L2. What is timed is the GPU's work, and host time is taken
beside it: the GPU sleeps ahead of each batch for as long as the host would fall behind in it (a backward through
autograd takes the host longer than many a kernel takes the GPU). One variant more is a device copy of as many bytes as
the op cannot do without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelworks.machine import gpu
from kernelworks.measure.clock.cuda_events import Evictor, cuda_event
from kernelworks.measure.clock.race import Call, Race

__all__ = ["COPY", "copy_of", "host_us", "race_on_gpu"]

COPY = "copy"  # This variant is a device copy.
LEAST_ROUNDS, MOST_ROUNDS = 15, 200
BATCH = 5  # So many rounds are queued before the host waits.
WARM_UP = 3
HOST_CALLS = 64  # The driver queues more than these before a launch waits for the GPU.
CYCLES = 2e9  # A second's sleep takes these cycles: no GPU's clock is higher by much.
LONGEST_S = 0.02  # The GPU sleeps no longer: what falls further behind is as slow for its caller.


def race_on_gpu(variants: Mapping[str, Call], *, budget_s: float) -> Race:
    """Times every variant for about ``budget_s`` seconds, L2 filled before each call. Device time a call."""
    evict = Evictor(gpu())
    for call in variants.values():
        for _ in range(WARM_UP):
            call(0)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    order, end = list(variants), time.monotonic() + budget_s * len(variants)
    behind_s = _behind(variants, evict)
    while len(samples[order[0]]) < MOST_ROUNDS and (
        len(samples[order[0]]) < LEAST_ROUNDS or time.monotonic() < end
    ):  # fmt: skip
        queued: list[tuple[str, Any, Any]] = []
        torch.cuda._sleep(int(BATCH * behind_s * CYCLES))
        for _ in range(BATCH):
            for name in order:
                queued.append((name, *_one(variants[name], evict)))
            order.reverse()
        torch.cuda.synchronize()
        for name, begin, finish in queued:
            samples[name].append(begin.elapsed_time(finish) / 1e3)
    return Race(samples, 0, 0)


def _behind(variants: Mapping[str, Call], evict: Evictor) -> float:
    """Seconds by which the host falls behind the GPU in a round, and a third more."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    pairs = [_one(call, evict) for call in variants.values()]
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    least = min(b.elapsed_time(e) for b, e in pairs) / 1e3  # a variant that waited for its host reads too long
    return float(min(LONGEST_S / BATCH, max(0.0, 4 / 3 * host - len(pairs) * least)))


def _one(call: Call, evict: Evictor) -> tuple[Any, Any]:
    begin, end = cuda_event(), cuda_event()
    evict()
    begin.record()
    call(0)
    end.record()
    return begin, end


def host_us(call: Call) -> float:
    """Host time of a call while the GPU need not be waited for: the median of five bursts."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(HOST_CALLS):
            call(0)
        found.append((time.perf_counter() - begin) / HOST_CALLS)
    torch.cuda.synchronize()
    return statistics.median(found) * 1e6


def copy_of(bytes: float) -> Callable[[], object]:
    """A call that copies half as many bytes, and so reads and writes that many together."""
    half = max(1, int(bytes) // 2)
    source = torch.empty(half, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
