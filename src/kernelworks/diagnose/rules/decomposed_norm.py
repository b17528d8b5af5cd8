"""A normalisation written as separate elementwise ops: each reads and writes everything again, and costs a call."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

SIGNS = frozenset({"mean", "rsqrt"})
STEPS = frozenset({"pow", "square", "mean", "add", "rsqrt", "sqrt", "mul", "div", "sub", "to", "type_as", "var"})


def applies(view: View) -> Advice | None:
    if view.plain not in STEPS or not view.siblings >= SIGNS:
        return None
    steps = max(2, len(view.siblings & STEPS))  # one call of several takes their place
    high = view.seconds * (1 - 1 / (2 * steps))
    return Advice("a norm made of many ops", "swap in kw.rms_norm or kw.layer_norm: one op", 0.6 * high, high)


RULE = Rule("decomposed_norm", applies)
