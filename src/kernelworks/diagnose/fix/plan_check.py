"""Whether a fix's plan does in a process of its own what it did in the one that found it.

A user applies the plan in a process that has searched nothing. What holds only after a search (a module that was called
before, a graph that was captured then) raises there. So the plan is run once in such a process before it is told. One
that cannot be run there loses what was applied last, until what is left can be.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelworks.diagnose.fix.worker_process import cause_of_end, worker_process
from kernelworks.records.fix import Fix

__all__ = ["NO_TIME", "PLAN_RUNS", "PLAN_STEP", "PlanRun", "checked_plan", "run_plan"]

MODULE = "kernelworks.diagnose.fix.plan_worker"
PLAN_RUNS = 4  # of the program, which a check takes at the least, beside the start of its process
NO_TIME = "no time was left for it"
PLAN_STEP = "running the plan in a process of its own"
WORDS = 200


@dataclass(frozen=True)
class PlanRun:
    """Seconds of a run with the plan, and those until it was in place; or ``why`` there are none. ``late``: the time
    was over, which says nothing of the plan."""

    run_s: float = 0.0
    ready_s: float = 0.0
    why: str = ""
    late: bool = False


def checked_plan(
    fix: Fix, run: Callable[[Mapping[str, Any]], PlanRun], without_last: Callable[[Fix, str], Fix]
) -> Fix:  # fmt: skip
    """The fix, with what a process of its own says of its plan. ``run`` runs a plan; ``without_last`` gives the fix as
    it was before what was applied last. A program that does not run there by itself says nothing of its plan."""
    runs_by_itself = False
    while fix.plan and fix.rounds and not fix.refused:
        found = run(fix.plan)
        if not found.why:
            return dataclasses.replace(fix, plan_run_s=found.run_s, plan_ready_s=found.ready_s)
        if found.late:
            return dataclasses.replace(fix, plan_not_run=found.why)
        if not runs_by_itself:
            alone = run({**fix.plan, "candidates": []})
            if alone.why:
                return dataclasses.replace(fix, plan_not_run=f"without it {alone.why}" if not alone.late else alone.why)
            runs_by_itself = True
        fix = without_last(fix, f"in a process that only applies the plan {found.why}")
    return fix


def run_plan(program: Mapping[str, Any], plan: Mapping[str, Any], seconds: float) -> PlanRun:
    """One run of it, within so many seconds. ``program`` is what a worker needs to build it."""
    ends = time.monotonic() + seconds
    with (
        tempfile.TemporaryFile() as errors,
        worker_process(MODULE, {**program, "plan": plan}, seconds, errors) as (process, messages),
    ):
        for message in messages.until(over=lambda: time.monotonic() > ends, ended=lambda: process.poll() is not None):
            if message["kind"] == "ran":
                return PlanRun(message["run_s"], message["ready_s"])
            return PlanRun(why=f"it raised {message['why']}")
        if time.monotonic() > ends:
            return PlanRun(why=f"it did not end within the {seconds:.0f} s that were left", late=True)
        cause = cause_of_end(process)
        errors.seek(0)
        lines = errors.read()[-4096:].decode(errors="replace").strip().splitlines()
    return PlanRun(why=f"{cause}{f' ({lines[-1].strip()[:WORDS]})' if lines else ''}")
