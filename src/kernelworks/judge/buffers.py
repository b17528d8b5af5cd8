"""What calls leave in a candidate's buffers, running statistics say: after its first calls it is what they leave in the
reference's, and later ones still change what those do."""

from __future__ import annotations

from typing import Any

from kernelworks.judge.harness import Bench
from kernelworks.judge.inputs.cases import Case
from kernelworks.judge.inputs.draws import BEYOND
from kernelworks.judge.roles.handle import VariantProcess
from kernelworks.judge.trial_result import TrialResult

__all__ = ["compare_first", "compare_last"]

MOST_FIRST = 3  # calls after which they are compared with the reference's: so many at the most, drawn


def compare_first(bench: Bench, variant: VariantProcess, case: Case, tried: TrialResult) -> list[Any]:
    """Of a process that has answered a case once: after this call, or one more or two with the same inputs. Returns
    what the reference's calls change, with names and places. Raises ProcessEnded, NoVerdict."""
    times = bench.draw.randint(1, MOST_FIRST)
    after = bench.buffers_after(case, times)
    if not after:
        return []
    for _ in range(times - 1):
        tried.take(variant.call([case]), "one of its first calls")
    if wrong := variant.wrong_buffer(after):
        tried.charge("other buffers", wrong)
    return after


def compare_last(variant: VariantProcess, cases: list[Case], changing: list[Any], tried: TrialResult) -> None:
    """Of a process that has answered many: a call with other inputs than the one before changes each of them. Raises
    ProcessEnded."""
    if not changing:
        return
    variant.call([cases[0]])
    before = variant.buffers(changing)
    variant.call([next((case for case in cases if case.draw == BEYOND), cases[-1])])
    for (name, *_), was, now in zip(changing, before, variant.buffers(changing), strict=False):
        if was == now:
            tried.charge("other buffers", f"its {name} is not changed any more by call {variant.number}")
