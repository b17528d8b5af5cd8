"""Threads that wait for compilers, and do not keep an interrupt waiting."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

__all__ = ["worker_pool"]


@contextlib.contextmanager
def worker_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that is waited for at the end. If an error or an interrupt comes first, what has not begun never does, and
    what has begun is not waited for."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
