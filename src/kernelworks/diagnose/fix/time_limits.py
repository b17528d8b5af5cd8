"""How long the steps of a search may take, so that a fix ends within its budget, 30 s and three runs of the program."""

from __future__ import annotations

from kernelworks.diagnose.fix.alternate import LEAST_RUNS
from kernelworks.diagnose.optimization import Scene

__all__ = [
    "ENDING_S",
    "FREE_RUNS",
    "PART",
    "SPARE_S",
    "TRIAL_RUNS",
    "part_s",
    "seconds_to_end",
    "time_is_left",
    "verification_s",
]

SPARE_S, ENDING_S = 29.0, 1.0  # beyond the budget, for the search; and for ending a worker and telling what it found
FREE_RUNS = 3  # of the program, beyond the budget
TRIAL_RUNS = LEAST_RUNS + 3  # of the program, which verifying and measuring takes at the least
PART = 0.0625  # of the budget, for one verification or one measurement
VERIFIES_S, VERIFIES_SHARE = 20.0, 1 / 3  # a verification may take so long, if it is no more of what is left


def seconds_to_end(scene: Scene) -> float:
    """Until the fix has to end: what is left of the budget, and what there is beyond it."""
    assert scene.budget is not None
    return max(0.0, scene.budget.seconds_left + SPARE_S)


def part_s(scene: Scene) -> float:
    """Seconds for one verification or one measurement."""
    assert scene.budget is not None
    return min(PART * scene.budget.seconds, seconds_to_end(scene))


def verification_s(scene: Scene) -> float:
    """Seconds for one verification. With a small budget it may take more than its part: what was compiled for it in
    half a minute would be lost for a few seconds, and with it the gain of torch's switch."""
    assert scene.budget is not None
    return max(part_s(scene), min(VERIFIES_S, VERIFIES_SHARE * scene.budget.seconds_left))


def time_is_left(scene: Scene, runs: int) -> bool:
    """Whether so many runs of the program fit what is left of the budget."""
    assert scene.budget is not None
    return scene.budget.seconds_left > runs * scene.wall
