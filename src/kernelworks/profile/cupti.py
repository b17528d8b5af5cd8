"""CUPTI, with which torch's profiler sees a GPU, detached again when a session ends.

torch leaves it attached (pytorch#144455), and each launch in the process is slower from then on: on an H200 with CUDA
13.0 a GPT-2 training step took 57 ms after one session and 29 ms before it, a T5 generation 128 and 103. What is timed
without a profiler has to be without CUPTI, too.

torch detaches it if ``TEARDOWN_CUPTI`` is 1: a thread of the profiler's then waits for the process's next call of CUDA,
in whose callback CUPTI can be ended. A session that begins before that thread is done can wait for ever (kineto#1554),
so the thread is waited for here, with calls that do nothing. Before CUDA 12.6 a graph that was captured may crash after
it (pytorch#112507): there CUPTI stays.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernelworks.machine.environment import cupti_teardown

__all__ = ["can_detach", "cupti_detached_after"]

FIRST_SAFE = (12, 6)  # CUDA's version
THREADS = Path("/proc/self/task")
MOST_WAIT_S, STEP_S = 2.0, 0.002


def can_detach(cuda: str | None) -> bool:
    """Whether CUPTI can be detached under that version of CUDA (``torch.version.cuda``) and graphs go on working, and
    the system tells when it is over."""
    if cuda is None or not THREADS.exists():
        return False
    numbers = [int(part) for part in cuda.split(".")[:2] if part.isdigit()]
    return tuple(numbers) >= FIRST_SAFE


@contextlib.contextmanager
def cupti_detached_after(
    *,
    cuda: str | None = torch.version.cuda,
    synchronize: Callable[[], object] = torch.cuda.synchronize,
    most_wait_s: float = MOST_WAIT_S,
) -> Iterator[None]:
    """Ends a profiler's session within, and CUPTI with it; returns when the profiler's thread that does so is gone, or
    after ``most_wait_s`` seconds."""
    if not can_detach(cuda):
        yield
        return
    before = _threads()
    with cupti_teardown():
        yield
        end = time.perf_counter() + most_wait_s
        while _threads() - before and time.perf_counter() < end:
            try:
                synchronize()
            except RuntimeError:  # the device is lost, as the program's next call will say
                return
            time.sleep(STEP_S)


def _threads() -> frozenset[str]:
    """The numbers of this process's threads."""
    return frozenset(os.listdir(THREADS))
