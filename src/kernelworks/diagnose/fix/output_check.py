"""Compares a program's outputs and training steps with a candidate in place with those of the original."""

from __future__ import annotations

from collections.abc import Sequence

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.order import COMPILERS, GRAPHS, stage
from kernelworks.diagnose.fix.time_limits import PART, seconds_to_end
from kernelworks.diagnose.optimization import CombinedChange, Scene
from kernelworks.diagnose.optimizations.trial import draws
from kernelworks.diagnose.verify.agreement import Agreement, compare
from kernelworks.diagnose.verify.training_steps import STEPS, same_steps
from kernelworks.profile.budget import BudgetExceeded, rounded_up

__all__ = ["check_outputs", "fits_whole"]

JUDGING = 40  # runs of the program to compare its modules: in float64, and with roundings added, a run is slower
MAX_ALLOWED_ERROR = 0.1  # relative error of what was allowed to change numbers: beyond it the outputs are wrong
FLOAT64_RUNS = 20  # runs of a program in 16 bits that one in float64 takes on a GPU
STEPPING = 3.0  # runs of the program that must fit the seconds for its steps to be compared


def check_outputs(scene: Scene, one: Try, together: CombinedChange, kept: Sequence[Try], seconds: float) -> None:
    """Compares the outputs with ``together`` in place with the original's, in about so many seconds. ``one.why`` says
    why they are not verified."""
    change = one.change
    if change is not None and change.verified_against:
        shown = [other.agreement for other in kept if other.change in together.changes and _says_something(other)]
        one.agreement = shown[-1] if shown else Agreement(0.0, 0.0, True, "", change.verified_against)
    else:
        together = _compared(scene, one, together, kept, seconds)
    assert scene.budget is not None
    same = change is not None and change.same_numbers
    if same or one.why or one.candidate.changes or STEPPING * scene.wall > PART * scene.budget.seconds:
        return
    scene.say(f"comparing {STEPS} steps: {one.candidate.optimization}, {one.candidate.says}")
    steps = same_steps(scene, together, _allowed(one, together, kept))
    if steps is not None and not steps.agrees:
        one.agreement, one.why = steps, f"the program's training steps differ with it ({steps.note})"


def _says_something(other: Try) -> bool:
    """Whether it was compared with anything; what changes no number was not."""
    return other.agreement is not None and other.change is not None and not other.change.same_numbers


def _allowed(one: Try, together: CombinedChange, kept: Sequence[Try]) -> CombinedChange | None:
    """What is in place already and may change numbers: what comes on top is compared with the outputs with it."""
    allowed = {id(other.change) for other in kept if other.candidate.changes and other is not one}
    found = [change for change in together.changes if id(change) in allowed]
    return CombinedChange(found) if found else None


def fits_whole(scene: Scene, seconds: float) -> bool:
    """Whether the program's own arguments, of their own sizes, are compared in so many seconds. What is compiled or
    captured holds the sizes that it was given: on others it would be made, and compared, anew."""
    return FLOAT64_RUNS * scene.wall <= seconds


def _of_fixed_sizes(one: Try, together: CombinedChange, kept: Sequence[Try]) -> list[Try]:
    """What is compiled or captured among the changes."""
    held = {id(change) for change in together.changes}
    return [other for other in {one, *kept} if id(other.change) in held and stage(other) in (COMPILERS, GRAPHS)]


def _compared(scene: Scene, one: Try, together: CombinedChange, kept: Sequence[Try], seconds: float) -> CombinedChange:
    """Compares the outputs of the modules that the program calls. Returns the changes with which it did."""
    assert scene.budget is not None
    fixed = _of_fixed_sizes(one, together, kept)
    compiling_s = sum(other.promise.cost_s for other in fixed if other.promise is not None)
    whole = bool(fixed) and fits_whole(scene, seconds_to_end(scene) / 2)
    again_s = compiling_s if fixed and not whole else 0.0
    if together.random is not None and draws(scene):
        again_s = compiling_s
        scene.budget.ask("verifying it with the random numbers of the original", again_s)
        together = together.random
    most_s = seconds + JUDGING * scene.wall + again_s
    one.agreement = found = compare(
        scene.answer_samples, seconds + again_s, min(most_s, seconds_to_end(scene)),
        changed=lambda module: together, untouched=together.is_untouched, before=_allowed(one, together, kept),
        whole=whole,
    )  # fmt: skip
    if found.ended:
        scene.budget.ask("verifying it", most_s)  # it raises if that is not left
        needs_s = rounded_up(2 * scene.budget.seconds)
        raise BudgetExceeded(
            f"verifying it took longer than {most_s:.0f} s: a budget of {needs_s} s may do", needs_s=needs_s
        )
    if not found.agrees and not (one.candidate.changes and found.against and found.after <= MAX_ALLOWED_ERROR):
        why = "its outputs are worse than the original's" if found.against else "its outputs were not compared"
        one.why = f"{why} ({found.note})" if found.note else why
    return together
