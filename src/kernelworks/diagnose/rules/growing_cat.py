"""A cache that grows by ``cat``: every step copies all that is there to add one row."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.patterns import CACHE
from kernelworks.diagnose.rules.rule import Advice, Rule, View


def applies(view: View) -> Advice | None:
    part = view.within(CACHE)
    if view.op != "cat" or not part or len(view.shapes) < 2:
        return None
    whole, added = math.prod(view.shapes[0]), math.prod(view.shapes[1])
    if added * 8 > whole:
        return None
    high = part * view.seconds * (1 - added / max(whole, 1))
    action = "keep the cache in one buffer, write each step into it (kernelworks.swap does it for a DynamicCache)"
    return Advice("a growing cache copied at every step", action, 0.7 * high, high)


RULE = Rule("growing_cat", applies)
