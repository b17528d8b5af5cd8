"""Attention of a few queries over a long cache: torch's CPU kernel shares work out by query, so threads stay idle."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View

ATTENTION = frozenset({"scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"})
FEW, LONG = 8, 64


def applies(view: View) -> Advice | None:
    if view.op not in ATTENTION or len(view.shapes) < 2 or view.achieved_share >= REACH:
        return None
    queries, keys = view.shapes[0][-2], view.shapes[1][-2]
    if queries > FEW or keys < LONG:
        return None
    sharing = math.prod(view.shapes[0][:-2])  # what torch's kernel can share out: heads of sequences
    if not view.kernel and sharing >= view.threads:
        return None
    action = (
        f"swap in {view.kernel}" if view.kernel else "use an attention kernel that splits the cache, not the queries"
    )
    return Advice("decode attention far below memory bandwidth", action, view.excess(REACH), view.excess())


RULE = Rule("decode_attention", applies, ("cpu",))
