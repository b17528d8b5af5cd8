"""SiLU of one tensor times another: written and read once more than needed."""

from __future__ import annotations

from kernelworks.diagnose.patterns import GATE
from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View


def applies(view: View) -> Advice | None:
    part = view.within(GATE)
    if not part or view.achieved >= REACH:
        return None
    high = part * view.excess()
    return Advice("a gate made of two ops", "swap in kw.silu_mul: one op", 0.4 * high, high, ("silu_mul",))


RULE = Rule("decomposed_gate", applies)
