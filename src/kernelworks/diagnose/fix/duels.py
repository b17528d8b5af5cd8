"""Benchmarks two optimizations of one place in turns, if they are predicted to save about as much.

Each of them was benchmarked against the program as it is, in a minute of its own. Two such races cannot tell which of
two good ones is faster: the noise of both would decide. Here both run in turns, on the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.order import CUDA_GRAPHS
from kernelworks.diagnose.optimization import CombinedChange, Scene
from kernelworks.diagnose.optimizations.alike_layers import changed_roots
from kernelworks.diagnose.optimizations.compiled_step import STEP
from kernelworks.diagnose.optimizations.trial import race, run_s

__all__ = ["CLOSE", "duel", "is_awaited", "is_close_rival", "is_raced"]

RACED_SITES = ("module", "function", "everywhere")  # sites that a race of modules tells of: no optimizer steps in one
CLOSE = 0.15  # of the time that remains with either: predictions that are closer do not tell them apart


def is_close_rival(one: Try, rival: Try) -> bool:
    """Whether only one of the two can be in place, and ``one`` is predicted to save about as much as ``rival``, or
    more."""
    group = one.candidate.group
    if one.saves is None or not group or group != rival.candidate.group:
        return False
    return 1 - one.saves <= (1 + CLOSE) * (1 - _said_to_save(rival))


def is_raced(one: Try, rival: Try) -> bool:
    """Whether a race of modules tells the two apart: else turns of the program itself do."""
    steps = one.candidate.option(STEP) or rival.candidate.option(STEP)
    return not steps and one.candidate.site.kind in RACED_SITES


def _said_to_save(rival: Try) -> float:
    """The share that it was predicted to save, by the same kind of benchmark if turns of the program could not bear
    that out (its promise is unknown then); what it saved as it was measured, if nothing was predicted."""
    if rival.saves is not None:
        return rival.saves
    return rival.saved_in_all if rival.predicted is None else rival.predicted


def is_awaited(one: Try, tried: Sequence[Try]) -> bool:
    """Whether torch's own switch, which captures all of the same place, is still to be measured: as long as it may be
    kept, parts of it bring nothing."""
    group = one.candidate.group
    rivals = (other for other in tried if group and other.candidate.group == group)
    left = (other for other in rivals if not (other.why or other.rejected or other.found))
    return any(other.candidate.options == (("mode", CUDA_GRAPHS),) for other in left)


def duel(scene: Scene, one: Try, rivals: Sequence[Try], beside: Sequence[Try]) -> float:
    """The share of the wall clock that ``one`` saves in the place of its ``rivals``, which are in place by now (below
    0: it costs time). What it changes is benchmarked on the inputs that were kept, with what stays ``beside`` in both
    variants. Raises what the modules raise with ``one`` in place."""
    assert scene.forecaster is not None
    if one.change is None:
        one.change = one.optimization.apply(scene, one.candidate)
    rest, theirs = ([other.change for other in some if other.change is not None] for some in (beside, rivals))
    site, roots = one.candidate.site, scene.roots
    if site.kind in ("module", "function"):
        roots = changed_roots(scene, one.candidate)
    variants = CombinedChange((*rest, *theirs)), CombinedChange((*rest, one.change))
    found = race(roots, *variants, scene.forecaster.device.with_sync, backward=scene.backward, budget=scene.budget)
    return found.saved_s / max(run_s(scene), found.before_s)
