"""A tensor copied only to lie differently: ``contiguous()``, or a ``reshape`` that cannot be a view."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

COPIES = frozenset({"contiguous", "clone", "reshape", "flatten", "copy_"})


def applies(view: View) -> Advice | None:
    moved = view.part("useful") + view.part("memory") + view.part("allocation")
    if view.op not in COPIES or moved < 0.3 * view.seconds:
        return None
    action = "avoid the copy: choose the layout before, or give the strides to an op that takes them"
    return Advice("copies that only change the layout", action, 0.5 * moved, view.seconds)


RULE = Rule("strided_copies", applies)
