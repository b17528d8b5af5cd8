"""How long the steps of a search may take, so that a fix ends within its budget, 30 s and three runs of the program."""

from __future__ import annotations

from kernelworks.diagnose.fix.alternate import LEAST_RUNS
from kernelworks.diagnose.optimization import Scene

__all__ = ["FREE_RUNS", "PART", "SPARE_S", "TRIAL_RUNS", "part_s", "seconds_to_end", "time_is_left"]

SPARE_S = 30.0  # beyond the budget, in which a fix has ended
FREE_RUNS = 3  # of the program, beyond the budget
TRIAL_RUNS = LEAST_RUNS + 3  # of the program, which verifying and measuring takes at the least
PART = 0.0625  # of the budget, for one verification or one measurement


def seconds_to_end(scene: Scene) -> float:
    """Until the fix has to end: what is left of the budget, and what there is beyond it."""
    assert scene.budget is not None
    return max(0.0, scene.budget.seconds_left + SPARE_S)


def part_s(scene: Scene) -> float:
    """Seconds for one verification or one measurement."""
    assert scene.budget is not None
    return min(PART * scene.budget.seconds, seconds_to_end(scene))


def time_is_left(scene: Scene, runs: int) -> bool:
    """Whether so many runs of the program fit what is left of the budget."""
    assert scene.budget is not None
    return scene.budget.seconds_left > runs * scene.wall
