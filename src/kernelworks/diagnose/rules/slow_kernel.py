"""An op of torch's well below the roofline that a verified kernel of ours can do."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View


def applies(view: View) -> Advice | None:
    if not view.kernel or view.achieved_share >= 0.8 or view.bottleneck == "dispatch":
        return None
    low = view.excess(REACH) if view.achieved_share < REACH else 0.0
    return Advice("ops below the roofline that have a verified kernel", f"swap in {view.kernel}", low, view.excess())


RULE = Rule("slow_kernel", applies)
