"""An activation of one tensor times another: written and read once more than needed."""

from __future__ import annotations

from kernelworks.diagnose.patterns import GATE
from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View
from kernelworks.spelling import gates


def applies(view: View) -> Advice | None:
    part = view.within(GATE)
    if not part or view.achieved >= REACH:
        return None
    high = part * view.excess()
    near = {view.plain, *view.siblings}
    ops = tuple(gate.op.name for name, gate in gates().items() if name in near or not near & gates().keys())
    said = " or ".join(f"kw.{op}" for op in ops)
    return Advice("a gate made of two ops", f"swap in {said}: one op", 0.4 * high, high, ops)


RULE = Rule("decomposed_gate", applies)
