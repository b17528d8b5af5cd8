"""CUPTI is detached when a session of the profiler ends, and the thread that does so is waited for."""

from __future__ import annotations

import os
import threading
import time

import pytest

from kernelworks.profile.cupti import can_detach, cupti_detached_after

CALLS_OF_CUDA = 3  # until the profiler's thread is done


@pytest.mark.parametrize(
    ("cuda", "can"),
    [(None, False), ("11.8", False), ("12.4", False), ("12.6", True), ("12.10", True), ("13.0", True), ("13", True)],
)
def test_it_is_detached_where_graphs_go_on_working(cuda, can):
    assert can_detach(cuda) is can


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_profilers_thread_is_waited_for(monkeypatch, before):
    if before is None:
        monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    else:
        monkeypatch.setenv("TEARDOWN_CUPTI", before)
    done, calls, seen = threading.Event(), [], []
    detaching = threading.Thread(target=lambda: (done.wait(60), seen.append(os.environ["TEARDOWN_CUPTI"])))

    def synchronize():
        calls.append(1)
        if len(calls) == CALLS_OF_CUDA:
            done.set()
            detaching.join()

    with cupti_detached_after(cuda="12.8", synchronize=synchronize, most_wait_s=60.0):
        detaching.start()
    assert len(calls) == CALLS_OF_CUDA and seen == ["1"]
    assert os.environ.get("TEARDOWN_CUPTI") == before


def test_threads_of_the_program_are_not_waited_for():
    done = threading.Event()
    programs = threading.Thread(target=done.wait)
    programs.start()
    try:
        calls = []
        with cupti_detached_after(cuda="12.8", synchronize=lambda: calls.append(1)):
            pass
        assert not calls
    finally:
        done.set()
        programs.join()


def test_a_thread_that_stays_is_waited_for_only_so_long():
    done = threading.Event()
    stays = threading.Thread(target=done.wait)
    try:
        begun = time.perf_counter()
        with cupti_detached_after(cuda="12.8", synchronize=lambda: None, most_wait_s=0.1):
            stays.start()
        assert time.perf_counter() - begun >= 0.1
    finally:
        done.set()
        stays.join()


def test_a_lost_device_hides_nothing():
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    done = threading.Event()
    with pytest.raises(ValueError, match="the program's own"):
        try:
            with cupti_detached_after(cuda="12.8", synchronize=lost):
                threading.Thread(target=done.wait).start()
            raise ValueError("the program's own")
        finally:
            done.set()


def test_an_old_cuda_is_left_as_it_is(monkeypatch):
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    with cupti_detached_after(cuda="12.4", synchronize=lambda: None):
        assert "TEARDOWN_CUPTI" not in os.environ
