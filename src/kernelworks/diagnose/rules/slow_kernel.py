"""An op of torch's well below its ceiling that a proved row of ours can do."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View


def applies(view: View) -> Advice | None:
    if not view.kernel or view.achieved_share >= 0.8 or view.bottleneck == "dispatch":
        return None
    low = view.excess(REACH) if view.achieved_share < REACH else 0.0
    return Advice("ops below their ceiling that have a row here", f"swap in {view.kernel}", low, view.excess())


RULE = Rule("slow_row", applies)
