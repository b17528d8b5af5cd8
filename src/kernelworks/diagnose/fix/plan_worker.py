"""The process in which a fix's plan is run as its user will run it: ``python -m`` with the numbers of a socket and of
the file that keeps the program's standard input.

It builds the program, gives the plan to ``kernelworks.apply`` before the program's first run, and runs it. It searches
nothing: what holds only where it was found shows here.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from kernelworks.diagnose import optimizations
from kernelworks.diagnose.fix.channel import started_worker
from kernelworks.diagnose.fix.outcome import in_a_line
from kernelworks.diagnose.fix.plan import AppliedPlan
from kernelworks.profile.program import Program, from_target

__all__ = ["main"]

LEAST_RUNS, MOST_RUNS = 3, 6  # a CUDA graph is recorded in the second run
LONG_S = 10.0  # the first run aside, which may compile: after so long no more than the least are made
SETTLED_RATIO = 1.2  # times the run before: no run compiles any more


def main() -> None:
    channel, request = started_worker()
    if request is None:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # another process has shown what the program prints
    try:
        channel.send("ran", **_ran(request))
    except BaseException as error:
        channel.send("failed", why=in_a_line(error) if isinstance(error, Exception) else type(error).__name__)
        sys.exit(1)


def _ran(request: dict[str, Any]) -> dict[str, float]:
    """Seconds of a run, and those until the plan was in place, beyond a run. Raises what the program raises,
    RuntimeError if some of the plan is not in place."""
    program = from_target(request["target"], request["args"], module=request["module"], silent=True)
    begin = time.perf_counter()
    plan = AppliedPlan(request["plan"], optimizations=optimizations.OPTIMIZATIONS)
    _seconds(program)
    ready_s = time.perf_counter() - begin
    missing = [*plan.failed, *plan.waiting]
    if missing:
        raise RuntimeError(f"not in place: {'; '.join(missing)}")
    begin, took = time.perf_counter(), [_seconds(program) for _ in range(LEAST_RUNS - 1)]
    while len(took) < MOST_RUNS and took[-2] > SETTLED_RATIO * took[-1] and time.perf_counter() - begin < LONG_S:
        took.append(_seconds(program))
    run_s = min(took)  # others may use the machine meanwhile, and nothing here throws their time away
    return {"run_s": run_s, "ready_s": max(0.0, ready_s + took[0] - 2 * run_s)}


def _seconds(program: Program) -> float:
    begin = time.perf_counter()
    program.run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
