"""An optimiser that goes over its lists of tensors once for each step of the formula."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View


def applies(view: View) -> Advice | None:
    name = view.plain
    if not name.startswith("_foreach_"):
        return None
    steps = max(2, len([s for s in view.siblings if s.startswith("_foreach_")]))
    high = view.seconds * (1 - 1 / steps)
    action = "torch.optim.AdamW(fused=True) or kw.adamw_: one pass over the parameters"
    return Advice("an optimiser in many passes", action, 0.6 * high, high)


RULE = Rule("unfused_optimizer", applies, ("cuda",))
