"""What a program's own collections of garbage take: no longer because a search holds objects too."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace

import pytest

from kernelworks.profile import gc_pauses
from kernelworks.profile import program as profiled
from kernelworks.profile.gc_pauses import Collections
from kernelworks.profile.program import Program
from kernelworks.profile.timeline import plain_run

OBJECTS = 400_000


def test_collections_that_walk_over_others_objects_are_no_part_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=time.thread_time, monotonic=time.monotonic)  # others may have the core
    monkeypatch.setattr(profiled, "time", clock)
    monkeypatch.setattr(gc_pauses, "time", clock)
    by_itself = Program("p", gc.collect)
    held = [[] for _ in range(OBJECTS)]  # as traces and graphs are
    begin = time.thread_time()
    gc.collect()
    took = time.thread_time() - begin
    assert min(by_itself.seconds() for _ in range(3)) < took / 2
    known = Program("p", gc.collect, collected=2 * took)
    assert max(known.seconds() for _ in range(3)) > took / 2, "what they take by themselves is"
    assert len(held) == OBJECTS


def test_of_collections_the_full_ones_alone_count() -> None:
    with Collections() as none:
        gc.collect(0)
    held = [[] for _ in range(OBJECTS)]
    found = plain_run(gc.collect)
    assert none.seconds == 0.0 < found.collected <= found.wall and held
    assert not any(isinstance(getattr(each, "__self__", None), Collections) for each in gc.callbacks)
