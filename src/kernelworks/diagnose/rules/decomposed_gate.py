"""SiLU of one product times another: written and read once more than needed."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View


def applies(view: View) -> Advice | None:
    gate = view.plain == "silu" and view.achieved < REACH
    product = view.plain == "mul" and view.module.endswith("mlp") and view.siblings <= {"mul", "silu", "linear"}
    if not gate and not product:
        return None
    return Advice("a gate made of two ops", "swap in kw.silu_mul: one op", 0.4 * view.excess(), view.excess())


RULE = Rule("decomposed_gate", applies)
