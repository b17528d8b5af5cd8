"""The scoreboard's column of a bounded search: what loop schedules come to from the problem alone, at the sizes that it
is judged at, and what the moves of the best one are worth at sizes that they were not chosen for."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelworks.judge import Budget, judge_all
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.problem import Problem
from kernelworks.measure.clock.noise import LIMIT, cpu_times, noise_between
from kernelworks.records.judgement import Judgement
from kernelworks.records.search import Search
from kernelworks.search import search
from kernelworks.search.schedule.candidate import candidate_of
from kernelworks.search.schedule.moves import Step, replay_steps
from kernelworks.search.schedule.plan import make_plan, naive
from kernelworks.search.schedule.trace import nest_of
from kernelworks.search.schedule.values import NotDerivable
from kernelworks.search.store import Store

__all__ = ["cell", "nothing", "other_sizes", "searched"]

PROPOSER = "schedule"  # the one that needs nothing but the problem
BASELINE = "eager"
WATCHES_S = 1.0


def searched(problem: Problem, seconds: float, threads: int, budget: Budget) -> dict[str, Any]:
    """What a search of so many seconds found. Ratios are kept of a machine that nobody else used."""
    with tempfile.TemporaryDirectory(prefix="kernelworks-scoreboard-") as folder:
        place = Path(folder) / "search.sqlite"
        quiet = is_alone()
        found = search(problem, proposers=[PROPOSER], budget_s=seconds, threads=threads, over=BASELINE, store=place)
        quiet = is_alone() and quiet
        best = found.best
        steps = _steps(place, best.tried.id) if best is not None else []
    made: dict[str, Any] = {
        "seconds": seconds, "judged": found.judged, "right": sum(one.verdict == "right" for one in found.candidates),
        "remark": _why_nothing(found), "best": None, "elsewhere": None,
    }  # fmt: skip
    if best is not None:
        made["best"] = _told(best.again or best.first, quiet)
        sizes = other_sizes(problem.shapes[0].sizes, problem.files[kernelbench.FILE])
        if sizes:
            made["elsewhere"] = {"sizes": sizes} | _elsewhere(problem, steps, sizes, threads, budget)
    return made


def is_alone() -> bool:
    """Whether others leave the machine alone. Asked before and after a judge's work, not of its time: most of what its
    walled processes took is in no account of ours."""
    before = cpu_times()
    time.sleep(WATCHES_S)
    return noise_between(before, cpu_times()).share <= LIMIT


def nothing(seconds: float, why: str) -> dict[str, Any]:
    """What there is to tell of a search that was ended."""
    return {"seconds": seconds, "judged": 0, "right": 0, "remark": why, "best": None, "elsewhere": None}


def _steps(place: Path, candidate: str) -> list[Step]:
    """The moves that a candidate of a search is made by."""
    with Store.read(place) as store:
        seen = store.candidate(candidate)
    return [] if seen is None else [(str(name), dict(args)) for name, args in seen.draft.detail["steps"]]


def _why_nothing(found: Search) -> str:
    """Why there is no best candidate, "" where there is one."""
    if found.best is not None:
        return ""
    remarks = [one.remark for one in found.by_proposer if one.remark]
    late = "the time was over before a candidate was judged" if not found.judged else found.outcome
    return found.why or (remarks[0] if remarks else late)


def other_sizes(sizes: Mapping[str, int], source: str) -> dict[str, int]:
    """The sizes with the largest that was halved one step back towards the problem's own; none where none was."""
    from kernelworks.judge.formats import text

    own = text.constants(text.parse_module(source, "the problem"))
    halved = {name: size for name, size in sizes.items() if name in own and 2 * size <= own[name]}
    if not halved:
        return {}
    largest = max(halved, key=lambda name: halved[name])
    return dict(sizes) | {largest: 2 * halved[largest]}


def _elsewhere(
    problem: Problem, steps: list[Step], sizes: dict[str, int], threads: int, budget: Budget
) -> dict[str, Any]:  # fmt: skip
    """The same moves at other sizes, those of them that are legal there. A candidate's text is for one size alone."""
    there = dataclasses.replace(problem, shapes=(dataclasses.replace(problem.shapes[0], sizes=sizes),))
    try:
        kernel = nest_of(there)
    except NotDerivable as error:
        return {"verdict": "declined", "why": str(error)}
    schedule, done = replay_steps(kernel, naive(kernel), steps)
    candidate = kernelbench.candidate_in(Path("searched.py"), candidate_of(make_plan(kernel, schedule)))
    quiet = is_alone()
    (found,) = judge_all([candidate], there, over=(BASELINE,), budget=budget, threads=threads)
    return _told(found, is_alone() and quiet) | {"moves": [len(done), len(steps)]}


def _told(found: Judgement, quiet: bool) -> dict[str, Any]:
    why = f"{found.reasons[0].kind}: {found.reasons[0].said[:100]}" if found.reasons else ""
    speeds = [one for one in found.speeds if one.over == BASELINE]
    made: dict[str, Any] = {"verdict": found.verdict, "why": why}
    if quiet and found.verdict == "right" and speeds:
        made["speed"] = {"ratio": speeds[0].ratio, "low": speeds[0].low, "high": speeds[0].high}
    return made


def cell(found: Mapping[str, Any] | None) -> str:
    """What the page says of it: how quick it is here, then what it lost elsewhere."""
    if not found:
        return ""
    count = f"{found['right']} of {found['judged']} right in {found['seconds']:.0f} s"
    if found["best"] is None:
        return f"nothing ({found['remark']}; {count})"
    said = f"{_speed(found['best'])} ({count})"
    there = found["elsewhere"]
    if there is None:
        return said
    where = ", ".join(f"`{name}={size}`" for name, size in there["sizes"].items())
    legal, all_of_them = there.get("moves", (0, 0))
    moves = f", {legal} of {all_of_them} moves legal" if legal < all_of_them else ""
    return f"{said}; its moves at {where}: {_speed(there)}{moves}{_lost(found['best'], there)}"


def _lost(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """The share of the speed over the baseline that is lost at the other sizes, where both were timed."""
    if "speed" not in here or "speed" not in there:
        return ""
    share = 1 - there["speed"]["ratio"] / here["speed"]["ratio"]
    return f": {100 * share:.0f}% lost there" if share > 0 else ": nothing lost there"


def _speed(one: Mapping[str, Any]) -> str:
    if one["verdict"] != "right":
        return f"{one['verdict']}: {one['why']}" if one["why"] else str(one["verdict"])
    speed = one.get("speed")
    return f"{speed['ratio']:.2f}x eager ({speed['low']:.2f} to {speed['high']:.2f})" if speed else "right, not timed"
