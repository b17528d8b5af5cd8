"""An op of torch's well below its ceiling that a proved row of ours can do."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View


def applies(view: View) -> Advice | None:
    if not view.row or view.achieved >= 0.8 or view.regime == "dispatch":
        return None
    low = view.excess(REACH) if view.achieved < REACH else 0.0
    return Advice("ops below their ceiling that have a row here", f"swap in {view.row}", low, view.excess())


RULE = Rule("slow_row", applies)
