"""Searches beside each other: fair shares, cores that are one worker's alone, one clock; a killed one holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelworks.search.workers import cores
from kernelworks.search.workers.cores import Share, claim_resources, fair

# Another process: it has a share, a core and the clock, says so, and does not end by itself.
OTHER = """
import time
from kernelworks.search.workers import cores as shares

held = shares.claim_resources("cores", [4, 5, 6], 2, 0.0)
with shares.Share("cores", 4, 4, 1) as share, shares.clock():
    print(share.workers(), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(cores, "FRESH_S", -1.0)


@pytest.mark.parametrize(
    ("total", "wanted", "given"),
    [
        (8, [(8, 1)], [8]),
        (8, [(8, 1), (8, 1)], [4, 4]),
        (8, [(2, 1), (8, 1)], [2, 6]),
        (8, [(8, 1), (8, 1), (8, 1)], [3, 3, 2]),
        (8, [(8, 2), (8, 1)], [3, 2]),
        (2, [(2, 1), (2, 1), (2, 1)], [1, 1, 0]),
        (3, [(1, 4), (2, 1)], [0, 2]),
        (0, [(1, 1)], [0]),
    ],
)
def test_shares_are_fair(total: int, wanted: list[tuple[int, int]], given: list[int]) -> None:
    assert fair(total, wanted) == given
    assert sum(n * each for n, (_, each) in zip(given, wanted, strict=True)) <= total


def test_a_second_search_has_its_share() -> None:
    with Share("cores", 4, 4, 1) as mine:
        assert mine.workers() == 4
        with Share("gpus", 1, 1, 1) as other_kind:
            assert mine.workers() == 4 and other_kind.workers() == 1
        with Share("cores", 4, 4, 1) as second, Share("cores", 4, 1, 2) as third:
            assert [one.workers() for one in (mine, second, third)] == [1, 1, 1]
        assert mine.workers() == 4
    assert not list(mine.folder.glob("*.json"))


def test_cores_are_one_workers_alone() -> None:
    first = claim_resources("cores", [4, 5, 6], 2, 0.0)
    assert first.numbers == (4, 5)
    with pytest.raises(TimeoutError, match="2 of 3 cores were not free"):
        claim_resources("cores", [4, 5, 6], 2, 0.0)
    assert claim_resources("gpus", [4], 1, 0.0).numbers == (4,)
    second = claim_resources("cores", [4, 5, 6], 1, 0.0)  # what a vain try has taken is free again
    assert second.numbers == (6,)
    first.let_go()
    assert claim_resources("cores", [4, 5, 6], 2, 0.0).numbers == (4, 5)
    second.let_go()


def test_one_at_a_time_takes_times() -> None:
    file = cores.environment.cache_dir("farm") / "clock.lock"
    with cores.clock():
        assert cores._locked(file, wait=False) is None
    assert cores._locked(file, wait=False) is not None


def test_a_gpu_is_used_by_many_or_by_one_that_takes_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1/2,3")
    (alone, beside), folder = cores.turns("cuda"), cores.environment.cache_dir("farm")
    with beside(), beside():
        (file,) = folder.glob("clock*.lock")
        assert cores._locked(file, wait=False) is None
    with alone():
        assert cores._locked(file, wait=False, shared=True) is None
        with cores.clock(), cores.clock("3"):  # cores and other GPUs are others'
            pass
    assert cores._locked(file, wait=False) is not None and cores.turns("cpu")[0] is cores.clock


def test_one_that_is_killed_holds_nothing() -> None:
    with Share("cores", 4, 4, 1) as mine:
        with subprocess.Popen([sys.executable, "-c", OTHER], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "2\n"
                assert mine.workers() == 2
                with pytest.raises(TimeoutError):
                    claim_resources("cores", [4, 5, 6], 2, 0.0)
                assert cores._locked(cores.environment.cache_dir("farm") / "clock.lock", wait=False) is None
            finally:
                process.kill()
        assert mine.workers() == 4 and len(list(mine.folder.glob("*.json"))) == 1
        assert claim_resources("cores", [4, 5, 6], 2, 0.0).numbers == (4, 5)
        with cores.clock():
            pass


def test_cores_are_those_that_this_process_may_use() -> None:
    assert sorted(cores.cores()) == sorted(os.sched_getaffinity(0))
