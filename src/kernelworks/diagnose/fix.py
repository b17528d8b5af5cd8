"""Swap our rows in, predict the gain, prove the outputs, measure in alternation, and give everything back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterable

import torch

from kernelworks.diagnose.agree import compare
from kernelworks.diagnose.overhead import Floors
from kernelworks.diagnose.places import Survey, fold
from kernelworks.diagnose.predict import Capture, Prediction, predict, replay
from kernelworks.diagnose.program import Program
from kernelworks.diagnose.roots import Roots, Swapped, find
from kernelworks.diagnose.timeline import Timeline, plain_run
from kernelworks.diagnose.trace import Trace, record
from kernelworks.records import Ceilings, Fix

__all__ = ["alternate", "apply_fix", "lines"]

Say = Callable[[str], None]
MOST_ROUNDS, LEAST_ROUNDS = 5, 2
FAULT_RUNS, SETTLE_S = 5, 4.0


def apply_fix(
    program: Program, timeline: Timeline, floors: Floors, ceilings: Ceilings, *, budget_s: float, say: Say
) -> Fix:
    """Everything that ``--fix`` does; afterwards every module is as it was.

    What the swapped program will take is predicted from replays of single ops before it is ever timed; the predicted
    gain is what the original then takes, in the same minute, less that.
    """
    say("finding the modules that the program calls")
    roots = find(program.run)
    if not roots.modules:
        note = "the program calls no torch.nn.Module: nothing to swap"
        return Fix((), (), timeline.wall, timeline.wall, 0.0, 0.0, 0.0, 0.0, True, 0, (note,))
    say("building the rows that the swapped program needs")
    with Swapped(roots) as swapped:
        program.run()
        replaced = lines((r.path, r.type, ", ".join(r.ops)) for s in swapped.swaps for r in s.replaced)
        left = lines((item.path, item.type, item.reason) for s in swapped.swaps for item in s.left)
        say("surveying the swapped program")
        survey = Survey()
        trace = record(program.run, survey=survey)
        with Capture(survey.persistent) as capture:
            program.run()
    trace.output = None
    prediction = _predict(program, roots, timeline, trace, capture, floors, ceilings, say)
    say("comparing with float64")
    agreement = compare(roots.samples)
    before, after, rounds = alternate(program, roots, timeline.wall, budget_s, say)
    notes = [note for note in (agreement.note,) if note]
    if prediction.unknown:
        notes.append(f"{prediction.unknown} calls of ours could not be replayed: predicted from their bound")
    return Fix(
        replaced=replaced,
        left=left,
        before_s=before,
        after_s=after,
        predicted_gain_s=before - prediction.after,
        gain_s=before - after,
        error_before=agreement.before,
        error_after=agreement.after,
        agrees=agreement.agrees,
        rounds=rounds,
        notes=tuple(notes),
    )


def _predict(
    program: Program,
    roots: Roots,
    timeline: Timeline,
    trace: Trace,
    capture: Capture,
    floors: Floors,
    ceilings: Ceilings,
    say: Say,
) -> Prediction:
    """The swapped program's wall clock, before it is looked at."""
    say("replaying our ops one by one, to predict the gain")
    times = replay(capture.captured)
    capture.captured.clear()
    faults = _faults(program, roots)
    return predict(timeline, trace, times, faults, floors, torch.get_num_threads(), ceilings)


def _faults(program: Program, roots: Roots) -> int:
    """Page faults of the swapped program as it will be measured: in turns with the original. How many there are depends
    on what ran before: what the survey and the replays left is given back first, and malloc gets some runs to settle,
    as it adapts to what is freed. The last run counts. The times are not looked at."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    count, start = 0, time.perf_counter()
    for turn in range(FAULT_RUNS):
        program.run()
        with Swapped(roots):
            count = plain_run(program.run).faults
        if turn and time.perf_counter() - start > SETTLE_S:
            break
    return count


def alternate(
    program: Program, roots: Roots, wall: float, budget_s: float, say: Say, *, most: int = MOST_ROUNDS
) -> tuple[float, float, int]:
    """Median wall clocks as it was and swapped, in turns; the order within a turn changes too. One swapped run before
    the first turn is not counted. Noise that lasts hits both alike."""
    rounds = max(LEAST_ROUNDS, min(most, int(0.6 * budget_s / max(2 * wall, 1e-9))))
    before: list[float] = []
    after: list[float] = []
    with Swapped(roots):
        program.run()
    for turn in range(rounds):
        say(f"measuring in alternation, {turn + 1} of {rounds}")
        for arm in ("before", "after") if turn % 2 == 0 else ("after", "before"):
            if arm == "before":
                before.append(_seconds(program))
            else:
                with Swapped(roots) as swapped:
                    after.append(_seconds(program) - swapped.spent)
    return statistics.median(before), statistics.median(after), rounds


def _seconds(program: Program) -> float:
    start = time.perf_counter()
    program.run()
    return time.perf_counter() - start


def lines(items: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """One line for all modules of one type whose paths differ in indices only: how many, where, and the text."""
    found: dict[tuple[str, str, str], int] = {}
    for path, kind, text in items:
        key = (fold(path), kind, text)
        found[key] = found.get(key, 0) + 1
    return tuple(
        f"{count} x {kind} {path}: {text}" if count > 1 else f"{kind} {path}: {text}"
        for (path, kind, text), count in found.items()
    )
