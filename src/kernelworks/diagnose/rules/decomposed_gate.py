"""An activation of one tensor times another: written and read once more than needed."""

from __future__ import annotations

from kernelworks.diagnose.rules.patterns import GATE
from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View
from kernelworks.dispatch.signature import gates

# Two ops read a and b, write the product, and write and read what is between; one op does all but the last two. Ops at
# their measured peaks waste these as well, so the rule does not ask how near they come to those.
PASSES = 3 / 5


def applies(view: View) -> Advice | None:
    part = view.within(GATE)
    if not part:
        return None
    one = PASSES * min(view.bound, view.seconds)
    low, high = (part * max(0.0, view.seconds - one / reach) for reach in (REACH, 1.0))
    near = {view.base_op, *view.siblings}
    ops = tuple(gate.op.name for name, gate in gates().items() if name in near or not near & gates().keys())
    said = " or ".join(f"kw.{op}" for op in ops)
    return Advice("a gate made of two ops", f"swap in {said}: one op", low, high, ops)


RULE = Rule("decomposed_gate", applies)
