"""The GPU's own counters of one launch of each rung, which Nsight Compute (``ncu``) reads where it may."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

from kernelworks.bench.nsight import command, read, refusal
from kernelworks.climb.ladder import Ladder
from kernelworks.climb.problem import Size
from kernelworks.rungs import RungResult

__all__ = ["METRICS", "counted"]

PERCENT = ".avg.pct_of_peak_sustained_active"
# By the name that they have in a record: seconds, bytes and counts as they are, the others shares of the peak.
METRICS = {
    "seconds": "gpu__time_duration.sum",
    "HBM read bytes": "dram__bytes_read.sum",
    "HBM written bytes": "dram__bytes_write.sum",
    "L2 bytes": "lts__t_bytes.sum",
    "shared bank conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "shared accesses": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "multiply-add pipe": "sm__pipe_fma_cycles_active" + PERCENT,
    "matrix pipe": "sm__inst_executed_pipe_tensor" + PERCENT,
    "issue slots": "sm__inst_issued" + PERCENT,
    "warps": "sm__warps_active" + PERCENT,
}
SHARES = {"multiply-add pipe", "matrix pipe", "issue slots", "warps"}
TIMEOUT_S = 120


def counted(ladder: Ladder, size: Size, results: Sequence[RungResult]) -> tuple[list[RungResult], str]:
    """The results with the counters of every rung that was proved, and why there are none. Cost: one more process,
    and some 0.1 s a rung."""
    right = [r.number for r in results if r.times]
    if not right:
        return list(results), ""
    if shutil.which("ncu") is None:
        return list(results), "no counters: ncu (Nsight Compute) is not installed"
    program = [sys.executable, "-m", "kernelworks.climb.once", str(ladder.folder), json.dumps(size), json.dumps(right)]
    try:
        done = subprocess.run(command(METRICS, program), capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return list(results), f"no counters: ncu could not be run: {error}"
    rows = read(done.stdout, METRICS)
    if len(rows) != len(right):
        return list(results), f"no counters: {refusal(done)}"
    found = {number: _shared(numbers) for number, (_, numbers) in zip(right, rows, strict=True)}
    return [dataclasses.replace(r, counters=found.get(r.number, r.counters)) for r in results], ""


def _shared(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value / 100 if name in SHARES else value for name, value in numbers.items()}
