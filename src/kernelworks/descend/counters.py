"""Which instructions a run spends its time in: program counters, sampled by the CPU time of all threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelworks.build.cpp import build_library
from kernelworks.build.loading import open_library

__all__ = ["PERIOD_US", "Samples", "sample_run"]

SOURCE = Path(__file__).with_name("counters.cpp")
PERIOD_US = 1000  # of CPU time between two samples; the kernel's tick (1 to 10 ms) may make it longer
MOST = 1 << 18  # samples of one run, 6 MB


@dataclass(frozen=True, slots=True)
class Samples:
    """``at`` in ns on the clock of ``time.perf_counter_ns``, in order; ``addresses`` in this process."""

    at: Any  # uint64[n]
    addresses: Any  # uint64[n]
    begun: int
    ended: int
    lost: int = 0


@functools.cache
def _library() -> ctypes.CDLL:
    library = open_library(build_library(SOURCE, "scalar"))
    library.start_counters.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    library.stop_counters.restype = ctypes.c_int64
    return library


@contextlib.contextmanager
def _counting(into: Any) -> Iterator[list[int]]:
    library, count = _library(), [0]
    error = library.start_counters(into.ctypes.data, len(into), PERIOD_US)
    if error:
        raise OSError(error, f"no timer for program counters: {os.strerror(error)}")
    try:
        yield count
    finally:
        count[0] = library.stop_counters()


def sample_run(run: Callable[[], Any]) -> Samples:
    """Runs it once. Raises what it raises, BuildError without a C++ compiler, OSError without a timer.

    A process has one such timer (ITIMER_PROF): a program that uses it itself is sampled by its own."""
    raw = np.zeros((MOST, 3), np.uint64)
    _library()
    begun = time.perf_counter_ns()
    with _counting(raw) as count:
        run()
    ended = time.perf_counter_ns()
    kept = raw[: min(count[0], MOST)]
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    return Samples(kept[:, 0], kept[:, 1], begun, ended, max(0, count[0] - MOST))
