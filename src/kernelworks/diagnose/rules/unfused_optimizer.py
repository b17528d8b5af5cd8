"""An optimizer that goes over its tensors once for each step of the formula."""

from __future__ import annotations

from kernelworks.diagnose.rules.patterns import ADAM
from kernelworks.diagnose.rules.rule import Advice, Rule, View

PROBLEM = "an optimizer in many passes"
ACTION = "fused=True in the optimizer that it is: one pass over the parameters"
MOVED, LEAST = 22, 7  # Adam op by op reads and writes so many tensors; one pass so many


def applies(view: View) -> Advice | None:
    part = view.within(ADAM)
    if part:
        high = part * view.seconds * (1 - LEAST / MOVED)
        return Advice(PROBLEM, ACTION, 0.3 * high, high)
    if not view.base_op.startswith("_foreach_") or view.device != "cuda":
        return None
    steps = max(2, len([s for s in view.siblings if s.startswith("_foreach_")]))
    high = view.seconds * (1 - 1 / steps)
    return Advice(PROBLEM, ACTION, 0.6 * high, high)


RULE = Rule("unfused_optimizer", applies, optimization="fused optimizer")
