"""A product with so few rows that it only reads the weights, slower than memory gives them (often on one thread)."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.rule import Advice, Rule, View

PRODUCTS = frozenset({"linear", "mm", "addmm", "matmul", "mv", "addmv"})
FEW = 8  # rows
LARGE = 256 * 1024  # bytes of weights


def applies(view: View) -> Advice | None:
    if view.op not in PRODUCTS or len(view.shapes) < 2 or view.achieved >= 0.8:
        return None
    x, weight = view.shapes[0], view.shapes[1]
    rows = math.prod(x[:-1]) if x else 1
    if rows > FEW or math.prod(weight) * 2 < LARGE:
        return None
    action = (
        f"swap in {view.row}" if view.row else "read the weights with all threads: a GEMV kernel, or a larger batch"
    )
    return Advice("weights read slower than memory gives them", action, view.excess(0.8), view.excess())


RULE = Rule("gemv", applies, ("cpu",))
