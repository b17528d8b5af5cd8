"""A tensor copied only to lie differently: ``contiguous()``, or a ``reshape`` that cannot be a view."""

from __future__ import annotations

from kernelworks.diagnose.account.account import MEMORY, USEFUL
from kernelworks.diagnose.rules.rule import Advice, Rule, View

COPIES = frozenset({"contiguous", "clone", "reshape", "flatten"})


def _dense(view: View) -> bool:
    """Whether what is copied lies in order, or is expanded: then the copy is for something else than the order."""
    at = 1
    if view.strides and 0 in view.strides[0]:
        return True
    for size, stride in reversed(list(zip(view.shapes[0], view.strides[0], strict=True))) if view.strides else ():
        if size != 1 and stride != at:
            return False
        at *= size
    return True


def applies(view: View) -> Advice | None:
    moved = view.part(USEFUL) + view.part(MEMORY) + view.part("allocation")
    if view.op not in COPIES or moved < 0.3 * view.seconds or _dense(view):
        return None
    action = "avoid the copy: choose the layout before, or give the strides to an op that takes them"
    return Advice("copies that only change the layout", action, 0.5 * moved, view.seconds)


RULE = Rule("strided_copies", applies)
