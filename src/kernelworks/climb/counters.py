"""The GPU's own counters of one launch of each rung, which Nsight Compute (``ncu``) reads where it may."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

from kernelworks.climb.climber import MATRIX_PIPE, bottleneck
from kernelworks.climb.ladder import Ladder
from kernelworks.climb.problem import Size
from kernelworks.measure.clock.nsight import command, parse_counters, refusal
from kernelworks.records.climb import RungResult

__all__ = ["METRICS", "read_counters"]

PEAK, PEAK_ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
# By the name that they have in a record: seconds, bytes and counts as they are.
COUNTS = {
    "seconds": "gpu__time_duration.sum",
    "HBM read bytes": "dram__bytes_read.sum",
    "HBM written bytes": "dram__bytes_write.sum",
    "L2 bytes": "lts__t_bytes.sum",
    "shared accesses": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "shared bank conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
# Shares of what the unit could have done in the same time.
UNITS = {
    "multiply-add pipe": "sm__pipe_fma_cycles_active" + PEAK,
    "matrix pipe": "sm__pipe_tensor_cycles_active" + PEAK,
    "L1 and shared memory": "l1tex__data_pipe_lsu_wavefronts" + PEAK,
    "L2": "lts__t_sectors" + PEAK,
    "HBM": "dram__throughput" + PEAK,
    "issue slots": "sm__inst_issued" + PEAK,
    "resident warps": "sm__warps_active" + PEAK_ACTIVE,
}
# What warps spend their cycles on, as shares of all of them.
WARPS = {
    "issuing": "selected",
    "ready, another was picked": "not_selected",
    "waiting for global memory": "long_scoreboard",
    "waiting for shared memory": "short_scoreboard",
    "waiting to hand over a global access": "lg_throttle",
    "waiting to hand over a shared access": "mio_throttle",
    "waiting for arithmetic units": "math_pipe_throttle",
    "waiting for wgmma": "gmma",
    "waiting at a barrier": "barrier",
    "waiting for a fixed latency": "wait",
    "waiting for instructions": "no_instruction",
    "waiting for a branch": "branch_resolving",
    "waiting for a fence": "membar",
    "asleep": "sleeping",
    "elsewhere": "misc",
}
STALL_METRIC = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = COUNTS | UNITS | {name: STALL_METRIC.format(reason) for name, reason in WARPS.items()}
LEAST = 0.02  # of the matrix units: what else uses them
TIMEOUT_S = 120


def read_counters(ladder: Ladder, size: Size, results: Sequence[RungResult]) -> tuple[list[RungResult], str]:
    """The results with the counters of every rung that was verified, and why there are none. Cost: one more process,
    and some 0.1 s a rung."""
    right = [r.number for r in results if r.times]
    if not right:
        return list(results), ""
    if shutil.which("ncu") is None:
        return list(results), "no counters: ncu (Nsight Compute) is not installed"
    program = [
        sys.executable,
        "-m",
        "kernelworks.climb.single_launch",
        str(ladder.folder),
        json.dumps(size),
        json.dumps(right),
    ]
    try:
        done = subprocess.run(command(METRICS, program), capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return list(results), f"no counters: ncu could not be run: {error}"
    launches = parse_counters(done.stdout, METRICS)
    if len(launches) != len(right):
        return list(results), f"no counters: {refusal(done)}"
    found = {number: numbers for number, (_, numbers) in zip(right, launches, strict=True)}
    return [_with(r, found[r.number]) if r.number in found else r for r in results], ""


def _with(result: RungResult, numbers: dict[str, float]) -> RungResult:
    """With its counters as shares. What no peak is measured for then explains a part of the time too: L1 and shared
    memory, and how long the matrix units were busy, at whatever clock. Of L2 the counter takes the place of a header's
    bytes: our measured peak is what plain loads get from it, and copies in bulk get more."""
    cycles = sum(numbers.get(name, 0.0) for name in WARPS) or 1.0
    shares = {name: numbers[name] / 100 for name in UNITS if name in numbers}
    waits = {name: numbers[name] / cycles for name in WARPS if name in numbers}
    kept = {name: numbers[name] for name in COUNTS if name in numbers} | shares | waits
    explained = dict(result.shares)
    if "L1 and shared memory" in shares:
        explained["shared" if result.resources.get("shared_bytes") else "L1"] = shares["L1 and shared memory"]
    if "L2" in explained and "L2" in shares:
        explained["L2"] = shares["L2"]
    if shares.get("matrix pipe", 0.0) > LEAST:
        explained[MATRIX_PIPE] = shares["matrix pipe"]
    return dataclasses.replace(result, counters=kept, shares=explained, bottleneck=bottleneck(explained))
