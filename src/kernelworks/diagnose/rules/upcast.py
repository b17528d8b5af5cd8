"""Values widened to float32 or narrowed back by an op of its own: traffic that a kernel does on the fly."""

from __future__ import annotations

from kernelworks.diagnose.account.account import MEMORY, USEFUL
from kernelworks.diagnose.rules.rule import Advice, Rule, View

CASTS = frozenset({"to", "float", "bfloat16", "half", "type_as", "_to_copy"})
HALVES = frozenset({"bfloat16", "float16"})


def _between(view: View) -> bool:
    """Whether it goes from 16 bits to float32 or back."""
    pair = {*view.dtypes[:1], view.result}
    return len(pair) == 2 and "float32" in pair and bool(pair & HALVES)


def applies(view: View) -> Advice | None:
    moved = view.part(USEFUL) + view.part(MEMORY) + view.part("allocation")
    if view.op not in CASTS or not moved or not _between(view):
        return None
    action = "keep the dtype: the next op should widen inside (fuse)"
    return Advice("conversions between dtypes as ops of their own", action, 0.5 * view.seconds, view.seconds)


RULE = Rule("upcast", applies)
