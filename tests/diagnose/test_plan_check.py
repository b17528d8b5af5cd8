"""A plan is run in a process of its own before it is told: one that cannot be run there is not told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelworks.diagnose import diagnose_script
from kernelworks.diagnose.fix import supervisor
from kernelworks.diagnose.fix.compile_pool import CompilePool
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.plan_check import NO_TIME, PLAN_STEP, PlanRun, checked_plan, run_plan
from kernelworks.diagnose.fix.supervisor import UPON_LOST
from kernelworks.records import Fix, Peaks
from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED
from kernelworks.report.fix import result_lines

PROGRAM = Path(__file__).parents[1] / "support" / "faulty_program.py"
PLANNED = dataclasses.replace(fix_record(2.0, 1.0, rounds=9), plan={"candidates": ["a", "b"]})
pytestmark = pytest.mark.usefixtures("quick_processes")


def fixed(faults: str, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch, fix_s: float = 240.0) -> Fix:
    monkeypatch.setenv("FAULTS", faults)
    found = diagnose_script(f"{PROGRAM}:run", fix=True, fix_s=fix_s, budget_s=0.5, rough=True, peaks=ceilings)
    assert found.fix is not None
    return found.fix


@pytest.mark.parametrize("how", ["raises", "ends"])
def test_what_breaks_a_process_that_searched_nothing_is_out_of_the_plan(
    how: str, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applied last, it is the only one that is lost."""
    what, said = {"raises": ("fail", "not in place: fresh fail: "), "ends": ("exit", "exited with code 0")}[how]
    found = fixed(f"predict:fail fresh:{what}", ceilings, monkeypatch)
    outcomes = {one.optimization: one for one in found.optimizations}
    assert outcomes["shorter"].outcome == APPLIED and outcomes[f"fresh {what}"].outcome == REJECTED
    assert said in outcomes[f"fresh {what}"].why, outcomes
    assert [each["optimization"] for each in found.plan["candidates"]] == ["shorter"]
    assert (
        found.plan_run_s > 0 and [step.what for step in found.steps].count(PLAN_STEP) == 3
    )  # with the program by itself


def test_what_was_measured_on_top_of_what_is_lost_is_lost_with_it(
    ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fixed("fresh:fail", ceilings, monkeypatch)
    outcomes = {one.optimization: one for one in found.optimizations}
    assert outcomes["fresh fail"].outcome == REJECTED and "not in place" in outcomes["fresh fail"].why
    assert outcomes["shorter"].outcome == NOT_TRIED and outcomes["shorter"].why == UPON_LOST
    assert not found.plan and not found.rounds and found.after_s == found.before_s


def test_a_plan_for_which_no_time_is_left_is_told_and_so_is_that(
    ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PLAN_RUNS", 1e6)
    found = fixed("predict:fail", ceilings, monkeypatch)
    assert found.plan and not found.plan_run_s and found.plan_not_run == NO_TIME
    assert f"The plan was not run in a new process: {NO_TIME}." in result_lines(found)


def test_compilers_beside_have_let_go_of_their_memory_by_then(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    close = CompilePool.close
    monkeypatch.setattr(CompilePool, "close", lambda pool: told.append("closed") or close(pool))
    monkeypatch.setattr(supervisor, "run_plan", lambda *_: told.append("run") or PlanRun(1.0))
    assert fixed("predict:fail", ceilings, monkeypatch).plan_run_s == 1.0
    assert told[:2] == ["closed", "run"]


def no_less(fix: Fix, why: str) -> Fix:
    pytest.fail(f"nothing is to be taken out: {why}")


def test_a_plan_that_did_not_come_to_its_end_in_time_is_not_to_blame() -> None:
    late = checked_plan(PLANNED, lambda plan: PlanRun(why="it was late", late=True), no_less)
    assert late.plan == PLANNED.plan and late.plan_not_run == "it was late" and not late.plan_run_s


@pytest.mark.parametrize("why", ["it raised OSError", "no time was left for it"])
def test_a_program_that_does_not_run_there_without_its_plan_says_nothing_of_it(why: str) -> None:
    def run(plan: Mapping[str, Any]) -> PlanRun:
        return PlanRun(why=why, late="time" in why) if not plan["candidates"] else PlanRun(why="it raised KeyError")

    found = checked_plan(PLANNED, run, no_less)
    assert found.plan == PLANNED.plan and why in found.plan_not_run


@pytest.mark.parametrize(
    "fix", [fix_record(1.0, 1.0), dataclasses.replace(PLANNED, rounds=0), dataclasses.replace(PLANNED, refused="why")]
)
def test_what_tells_no_plan_runs_none(fix: Fix) -> None:
    never: Callable[..., PlanRun] = lambda plan: pytest.fail("nothing is to be run")  # noqa: E731
    assert checked_plan(fix, never, no_less) is fix


def test_what_a_new_process_needs_for_the_plan_is_told() -> None:
    said = "In a new process that only applies the plan: 1.50 s per run, after 7.00 s to put it in place."
    assert said in result_lines(dataclasses.replace(PLANNED, plan_run_s=1.5, plan_ready_s=7.0))


def test_a_program_that_hangs_there_ends_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "waits.py"
    path.write_text("import time\n\ndef run():\n    time.sleep(600)\n")
    plan = {"kernelworks_plan": 2, "program": "waits.py:run", "kind": "", "torch": "", "saves": 0.5, "roots": [],
            "candidates": []}  # fmt: skip
    found = run_plan({"target": f"{path}:run", "args": [], "module": False}, plan, 3.0)
    assert found.late and "3 s" in found.why and not found.run_s
