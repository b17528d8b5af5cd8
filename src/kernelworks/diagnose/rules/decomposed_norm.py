"""A normalization written as separate elementwise ops: each reads and writes everything again, and costs a call."""

from __future__ import annotations

from kernelworks.diagnose.rules.patterns import NORM
from kernelworks.diagnose.rules.rule import Advice, Rule, View, replacement_ops

STEPS = 5  # square, mean, add, rsqrt, multiply; one call takes their place


def applies(view: View) -> Advice | None:
    high = view.seconds * view.within(NORM) * (1 - 1 / (2 * STEPS))
    if not high:
        return None
    ops = replacement_ops(NORM)
    action = f"swap in {' or '.join(f'kw.{op}' for op in ops)}: one op"
    return Advice("a norm made of many ops", action, 0.6 * high, high, ops)


RULE = Rule("decomposed_norm", applies)
