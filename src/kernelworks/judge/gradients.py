"""Gradients of a candidate, against float64: of its inputs, and of its weights where they have the reference's names;
and its answer where it has a graph."""

from __future__ import annotations

import time

from kernelworks.judge.harness import Bench
from kernelworks.judge.roles.handle import VariantProcess
from kernelworks.judge.trial_result import TrialResult
from kernelworks.records.judgement import Charge

__all__ = ["ask_gradients"]

MORE_CALLS, MORE_S = (6, 40), 0.5  # of the same cases, drawn between these, and what they may take
WITH_GRAPH = 2  # cases whose answers are made with a graph
GRAPH_CALL = "an answer that has a graph"


def ask_gradients(bench: Bench, variant: VariantProcess, tried: TrialResult) -> None:
    """Sent through the answer's graph, each case once, then as often as is drawn; the answer itself is held against the
    reference in such calls too. Raises ProcessEnded."""
    cases, weights = bench.gradients()
    if not cases:
        return
    named = weights if tried.weights == "the reference's" else []
    some = [case.first_outputs(len(case.outputs) - (0 if named or not weights else len(weights))) for case in cases]
    if not all(case.outputs for case in some):
        return
    for case in bench.cases[:WITH_GRAPH]:
        answer = variant.call([case], "graph")
        if answer.raised:
            tried.remarks.append(Charge("no gradients", answer.raised))
            return
        tried.take(answer, GRAPH_CALL)
    more = bench.draw.randint(*MORE_CALLS)
    until = time.monotonic() + MORE_S
    for number, case in enumerate([*some, *(bench.draw.choice(some) for _ in range(more))]):
        if number >= len(some) and time.monotonic() > until:
            return
        answer = variant.call([case], "backward", weights=named)
        if answer.raised:
            tried.remarks.append(Charge("no gradients", answer.raised))
            return
        tried.take(answer, "gradients", wrong="wrong gradient")
        if answer.wrong:
            return
