"""How many threads a kernel is given: one where its work is too small to share, or while others hold the cores.

On a machine of one's own a second thread costs under a microsecond. Where another program holds one of the cores, a
thread of ours waits for it until the system takes the core away, some 12 ms, in every call anew (two cores, one busy:
a 16 us gelu took 12 ms on two threads, and torch's own as long). Therefore

- work is shared only where one thread would be at it for longer than ``GRAIN_NS``: about where torch's pointwise
  functions begin to share, so that we are not held up where torch is not;
- a call that was shared and took longer than one thread alone would have, by ``STALL_S``, was held up, and for a while
  all calls of this process run on one thread. The while doubles with every further one, up to ``LONGEST_S``.

No result depends on it: kernels give the same bits for any number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["choose_threads", "is_forked", "is_held_up", "torch_on_one_thread_if_forked", "watch_forks"]

GRAIN_NS = 32 * 1024
STALL_S = 2e-3
GENEROUS = (
    8  # times as long as estimated a thread may take: operands from memory, outputs that page-fault, other dtypes
)
SHORTEST_S, LONGEST_S = 0.05, 1.0

_get_num_threads = torch.get_num_threads
_now = time.perf_counter
_alone_until, _alone_s = 0.0, SHORTEST_S
is_forked = False


def _after_fork() -> None:
    global is_forked
    is_forked = True


@functools.cache
def watch_forks() -> None:
    """A forked child runs on one thread: OpenMP's pool is gone there."""
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def torch_on_one_thread_if_forked() -> Iterator[None]:
    """Around torch's own loops within a call of ours: in a forked child they would wait for a pool that is gone."""
    threads = _get_num_threads() if is_forked else 0
    if threads:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads:
            torch.set_num_threads(threads)


def choose_threads(kernel: Callable[..., Any], nanoseconds: float) -> tuple[Callable[..., Any], int]:
    """The kernel as it is to be called, and the number of threads to give it: its last argument.

    ``nanoseconds`` is about what one thread needs: an elementwise kernel one for each element.
    """
    if nanoseconds <= GRAIN_NS or is_forked:
        return kernel, 1
    threads = _get_num_threads()
    if threads == 1 or (_alone_until and _now() < _alone_until):
        return kernel, 1
    return functools.partial(_watched, kernel, nanoseconds), threads


def is_held_up() -> bool:
    """Whether work is not shared for now, since it was held up: a figure taken meanwhile is of one thread."""
    return _alone_until > 0.0 and _now() < _alone_until


def _watched(kernel: Callable[..., Any], nanoseconds: float, *args: Any) -> Any:
    global _alone_until, _alone_s
    begin = _now()
    result = kernel(*args)
    end = _now()
    if end - begin > STALL_S + GENEROUS * 1e-9 * nanoseconds:
        _alone_until, _alone_s = end + _alone_s, min(LONGEST_S, 2 * _alone_s)
    elif _alone_until:
        _alone_until, _alone_s = 0.0, SHORTEST_S
    return result
