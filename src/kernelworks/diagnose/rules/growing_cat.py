"""A cache that grows by ``cat``: every step copies all that is there to add one row."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.rule import Advice, Rule, View

MANY = 4


def applies(view: View) -> Advice | None:
    if view.op != "cat" or not view.growing or view.calls < MANY or len(view.shapes) < 2:
        return None
    whole, added = math.prod(view.shapes[0]), math.prod(view.shapes[1])
    if added * 8 > whole:
        return None
    high = view.seconds * (1 - added / max(whole, 1))
    action = "keep the cache in one buffer and write each step into it (kw.swap does so for DynamicCache)"
    return Advice("a growing cache copied at every step", action, 0.7 * high, high)


RULE = Rule("growing_cat", applies)
