"""A rotary embedding written as negate, concatenate, multiply and add."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

SIGNS = frozenset({"neg", "cat", "mul", "add"})


def applies(view: View) -> Advice | None:
    if view.plain not in SIGNS or not view.siblings >= SIGNS or view.growing:
        return None
    high = view.seconds * (1 - 1 / 8)  # one op instead of four for q and four for k
    return Advice("a rotary embedding made of many ops", "swap in kw.rope: one op for q and k", 0.6 * high, high)


RULE = Rule("decomposed_rope", applies)
