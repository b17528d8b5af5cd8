"""A rotary embedding written as negate, concatenate, multiply and add."""

from __future__ import annotations

from kernelworks.diagnose.rules.patterns import ROTARY
from kernelworks.diagnose.rules.rule import Advice, Rule, View, replacement_ops


def applies(view: View) -> Advice | None:
    high = view.seconds * view.within(ROTARY) * (1 - 1 / 8)  # one op instead of four for q and four for k
    if not high:
        return None
    ops = replacement_ops(ROTARY)
    action = f"swap in {' or '.join(f'kw.{op}' for op in ops)}: one op for q and k"
    return Advice("a rotary embedding made of many ops", action, 0.6 * high, high, ops)


RULE = Rule("decomposed_rope", applies)
