"""A rotary embedding written as negate, concatenate, multiply and add."""

from __future__ import annotations

from kernelworks.diagnose.patterns import ROPE
from kernelworks.diagnose.rules.rule import Advice, Rule, View


def applies(view: View) -> Advice | None:
    high = view.seconds * view.within(ROPE) * (1 - 1 / 8)  # one op instead of four for q and four for k
    if not high:
        return None
    return Advice(
        "a rotary embedding made of many ops", "swap in kw.rope: one op for q and k", 0.6 * high, high, ("rope",)
    )


RULE = Rule("decomposed_rope", applies)
