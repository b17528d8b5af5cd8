"""What the allocator optimization does to malloc, as programs that begin: `python malloc_runs.py FUNCTION` runs one.
What earlier tests left free in a process's heap, and what malloc adapted to for them, would be taken first."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from optimization_stands import Case, asked, candidates, net, scene_of
from torch import nn

from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.optimization import CombinedChange, Promise
from kernelworks.diagnose.optimizations import allocator, program_trial
from kernelworks.measure.clock import page_faults
from kernelworks.profile.program import Program

PR_SET_THP_DISABLE = 41
THRESHOLDS = {page_faults.M_MMAP_THRESHOLD: 1 << 20, page_faults.M_TRIM_THRESHOLD: 2 << 20}


def _pages_of(variant: CombinedChange, run: Callable[[], int]) -> float:
    with variant:
        return float(run() + 1)


def keeps_what_is_freed_while_it_is_told_to() -> None:
    """Told by page faults: how long a run takes is not for a test to say."""
    if page_faults.thresholds() is None:
        assert candidates(allocator.OPTIMIZATION, scene_of(asked(net()), faults=10**6)) == []
        return
    big = torch.zeros(12 << 20)
    page_faults.set_thresholds(THRESHOLDS)

    def run() -> int:
        before = page_faults.minor_faults()
        torch.relu(big)
        return page_faults.minor_faults() - before

    pages = run()
    scene = scene_of(Case(nn.Identity(), run), faults=pages)
    (candidate,) = allocator.OPTIMIZATION.candidates(scene)
    with mock.patch.object(program_trial, "_seconds", lambda scene, variant: _pages_of(variant, run)):
        assert (allocator.OPTIMIZATION.predict(scene, candidate).saves or 0) > 0.9
    change = allocator.OPTIMIZATION.apply(scene, candidate)
    small = []
    for _ in range(2):
        with change:
            assert run() < 0.1 * pages  # the first run too
            small.append(torch.zeros(40))  # lies above what is freed, and keeps its place in the heap
            assert candidates(allocator.OPTIMIZATION, scene) == []
        assert run() > 0.9 * pages and run() > 0.9 * pages


def needs_no_module_to_be_compared() -> None:
    """What changes no number is verified without one."""
    if not page_faults.set_thresholds(THRESHOLDS):
        return
    big = torch.zeros(2 << 20)
    side: Any = scene_of(Case(nn.Identity(), lambda: torch.relu(big)), faults=10**4).forecaster
    side.most_rounds, side.with_sync = 3, lambda program: program

    def seconds(program: Program) -> float:
        return 0.05 if page_faults.thresholds() == page_faults.RAISED_THRESHOLDS else 0.1

    with (
        mock.patch.object(Program, "seconds", seconds),
        mock.patch.object(type(allocator.OPTIMIZATION), "predict", lambda *args: Promise(0.5)),
    ):
        found = Search(
            Program("p", lambda: torch.relu(big)), (0.1, 0.101, 0.099), side, budget_s=600.0, say=lambda line: None,
            optimizations=(allocator.OPTIMIZATION,),
        ).fix()  # fmt: skip
    assert found.optimizations[0].applied and found.against == "itself, as it changes no number"
    assert found.after_s == 0.05


if __name__ == "__main__":
    # Pages are small ones, also where the system hands out 2 MiB at a time and a large output faults a few times.
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    with page_faults.Memory():
        globals()[sys.argv[1]]()
