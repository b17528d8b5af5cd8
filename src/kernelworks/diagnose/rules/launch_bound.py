"""The device waits for the host: launches, torch's dispatch and Python take longer than the kernels they start."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

GAPS = frozenset({"launch latency", "torch's dispatch", "python"})
LEAST = 0.01  # of the wall clock: smaller gaps are no problem


def applies(view: View) -> Advice | None:
    if view.op not in GAPS or view.share < LEAST:
        return None
    action = (
        'capture the step in a CUDA graph, or torch.compile(mode="reduce-overhead"); else fewer and larger ops '
        "(kw.swap), or a larger batch"
    )
    return Advice("the GPU waits for the host", action, 0.5 * view.seconds, 0.95 * view.seconds)


RULE = Rule("launch_bound", applies, ("cuda",))
