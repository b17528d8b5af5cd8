"""A device that works by itself, imitated on the CPU: what a candidate gives to a stream of it is done by a thread, in
its own time. So all that the judge does for a GPU, but the driver's calls, runs where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from kernelworks.judge.roles.device import Host

__all__ = ["Imitated", "later"]

PENDING: list[Future[Any]] = []
POOL: list[ThreadPoolExecutor] = []
OFF = [0.0]  # by which events are wrong


def later(work: Callable[[], Any]) -> Future[Any]:
    """On a stream of its own, which nothing but ``synchronize`` waits for."""
    if not POOL:
        POOL.append(ThreadPoolExecutor(1))
    PENDING.append(POOL[0].submit(work))
    return PENDING[-1]


class Imitated(Host):
    """``asked`` counts what the supervisor asked of it."""

    name = "imitated"
    apart = True
    alignment = 512
    seen_least_s = 0.001

    def __init__(self) -> None:
        self.asked = dict.fromkeys(("held", "flush", "delay"), 0)

    def tensors_on_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.asked["held"] += 1
        return [t.clone() for t in tensors]

    def flush(self) -> None:
        self.asked["flush"] += 1

    def delay_s(self) -> float:
        self.asked["delay"] += 1
        return 0.0

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_times(self, marks: Sequence[tuple[Any, Any]]) -> list[float]:
        return [end - begin + OFF[0] for begin, end in marks]

    def synchronize(self) -> None:
        while PENDING:
            PENDING.pop().result()
