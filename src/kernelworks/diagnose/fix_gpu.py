"""``--fix`` on a GPU: swap our rows in, predict the gain, prove the outputs, measure in alternation, give all back."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from kernelworks.diagnose.agree import compare
from kernelworks.diagnose.fix import alternate, lines
from kernelworks.diagnose.overhead import Floors
from kernelworks.diagnose.places import Survey
from kernelworks.diagnose.predict_gpu import Words, predict, replayed
from kernelworks.diagnose.program import Program
from kernelworks.diagnose.roots import Swapped, find
from kernelworks.diagnose.timeline_gpu import GpuTimeline, waiting
from kernelworks.diagnose.trace import record, without_collection
from kernelworks.records import Fix, GpuCeilings

__all__ = ["apply_fix"]

Say = Callable[[str], None]
MOST_ROUNDS = 15


def apply_fix(
    program: Program, timeline: GpuTimeline, floors: Floors, ceilings: GpuCeilings, *, budget_s: float, say: Say
) -> Fix:
    """Everything that ``--fix`` does; afterwards every module is as it was.

    The swapped program is predicted before it is timed. The predicted gain is the share of the original's time that the
    prediction saves, of the original's time as it is measured in alternation with the swapped program.
    """
    whole = Program(program.name, waiting(program.run))
    say("finding the modules that the program calls")
    roots = find(program.run)
    if not roots.modules:
        note = "the program calls no torch.nn.Module: nothing to swap"
        return Fix((), (), timeline.wall, timeline.wall, 0.0, 0.0, 0.0, 0.0, True, 0, (note,))
    memory_before = _peak_bytes(whole)
    say("building the rows that the swapped program needs")
    with Swapped(roots) as swapped:
        whole.run()
        replaced = lines((r.path, r.type, ", ".join(r.ops)) for s in swapped.swaps for r in s.replaced)
        left = lines((item.path, item.type, item.reason) for s in swapped.swaps for item in s.left)
        memory_after = _peak_bytes(whole)
        say("surveying the swapped program")
        trace = record(whole.run, survey=Survey())
        trace.output = None
        with Words() as words:
            whole.run()
    _give_back()
    say("replaying our ops one by one, to predict the gain")
    costs = replayed(trace.calls, ceilings.l2_bytes, words)
    with without_collection():
        prediction = predict(timeline, trace.calls, costs, ceilings)
    say("comparing with float64")
    _give_back()
    agreement = compare(roots.samples)
    _give_back()
    before, after, rounds = alternate(whole, roots, timeline.wall, budget_s, say, most=MOST_ROUNDS)
    notes = [note for note in (agreement.note,) if note]
    if prediction.unknown:
        notes.append(f"{prediction.unknown} calls of ours could not be replayed: predicted from their bound")
    notes.append(f"peak device memory {memory_before / 1e9:.2f} GB before, {memory_after / 1e9:.2f} GB after")
    return Fix(
        replaced=replaced,
        left=left,
        before_s=before,
        after_s=after,
        predicted_gain_s=before * (1 - prediction.share),
        gain_s=before - after,
        error_before=agreement.before,
        error_after=agreement.after,
        agrees=agreement.agrees,
        rounds=rounds,
        notes=tuple(notes),
    )


def _peak_bytes(program: Program) -> int:
    """The most bytes of tensors that a run has on the device at once."""
    torch.cuda.reset_peak_memory_stats()
    program.run()
    return torch.cuda.max_memory_allocated()


def _give_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
