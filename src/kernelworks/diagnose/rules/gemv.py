"""A product that only reads a matrix, having few rows or columns, slower than memory gives it (often on one thread)."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.rule import Advice, Rule, View

PRODUCTS = frozenset({"linear", "mm", "addmm", "matmul", "mv", "addmv"})
ADD_OPS = frozenset({"addmm", "addmv"})  # their first tensor is what is added
FEW = 8  # with so few rows or columns a product only reads the matrix
LARGE = 256 * 1024  # smaller matrices (bytes) stay in the cache


def applies(view: View) -> Advice | None:
    tensors = view.shapes[1:] if view.op in ADD_OPS else view.shapes
    if view.op not in PRODUCTS or len(tensors) < 2 or view.achieved_share >= 0.8:
        return None
    x, y = tensors[0], tensors[1]
    rows = math.prod(x[:-1])
    columns = math.prod(y[:-1]) if view.op == "linear" else y[-1] if len(y) > 1 else 1
    matrix = max(x, y, key=math.prod)
    few = columns if matrix is x else rows
    if few > FEW or len(matrix) < 2 or math.prod(matrix) * view.itemsize < LARGE:
        return None
    action = (
        f"swap in {view.kernel}"
        if view.kernel
        else "read the weights with all threads: a GEMV kernel, or a larger batch"
    )
    return Advice("weights read below memory bandwidth", action, view.excess(0.8), view.excess())


RULE = Rule("gemv", applies, ("cpu",))
