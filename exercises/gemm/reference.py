"""C = A B."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, Rows, random


def case(m, n, k, gap, about, **more):
    draw = random(1000 * m + 10 * n + k)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    arrays = {"a": Rows(a, gap), "lda": k + gap, "b": Rows(b, gap), "ldb": n + gap, "c": Output((m, n), gap=gap)}
    return Case(about, {**arrays, "ldc": n + gap, "m": m, "n": n, "k": k}, **more)


def cases():
    yield case(4, 8, 6, 0, "m = 4, n = 8, k = 6")
    yield case(3, 5, 7, 0, "m = 3, n = 5, k = 7")
    yield case(5, 5, 5, 0, "m = n = k = 5, not symmetrical")
    yield case(1, 1, 1, 0, "m = n = k = 1")
    yield case(6, 7, 5, 3, "m = 6, n = 7, k = 5, three elements between the rows")
    yield case(17, 33, 9, 0, "m = 17, n = 33, k = 9")
    yield case(2, 3, 0, 0, "k = 0: C is 0")


def timed():
    n = 192
    return case(n, n, n, 0, f"m = n = k = {n}", flop=2 * n**3, bytes=12 * n**2)


def reference(a, lda, b, ldb, ldc, m, n, k):
    return {"c": a @ b}


def bound(a, lda, b, ldb, ldc, m, n, k):
    return {"c": (k + 1) * HALF_ULP * (np.abs(a) @ np.abs(b)) + TINY}


def first_product(a, lda, b, ldb, ldc, m, n, k):
    return {"c": np.outer(a[:, 0], b[0]) if k else np.zeros((m, n))}


def transposed(a, lda, b, ldb, ldc, m, n, k):
    return {"c": a @ (b.T if n == k else b)}


def added(a, lda, b, ldb, ldc, m, n, k):
    return {"c": a.sum(1)[:, None] + b.sum(0)}


def last_product(a, lda, b, ldb, ldc, m, n, k):
    return {"c": np.outer(a[:, -1], b[-1]) if k else np.zeros((m, n))}


def first_products(a, lda, b, ldb, ldc, m, n, k):
    return {"c": k * np.outer(a[:, 0], b[0]) if k else np.zeros((m, n))}


def in_one_sum(a, lda, b, ldb, ldc, m, n, k):
    return {"c": np.cumsum(a @ b).reshape(m, n)}


MISTAKES = {
    "only the product for p = 0 is there": first_product,
    "right only for symmetrical matrices: it takes B[j, p] where B[p, j] is meant": transposed,
    "this adds A[i, p] + B[p, j]: a matrix product adds products": added,
    "only the last product of each sum is there: set it to 0 once, before the loop over p, and add by +=": last_product,
    "each sum is k times its first product: where is p in the two indices?": first_products,
    "the sum goes on from column to column: it begins at 0 for each i and each j": (
        lambda a, lda, b, ldb, ldc, m, n, k: {"c": np.cumsum(a @ b, axis=1)}
    ),
    "the sum goes on from element to element: it begins at 0 for each i and each j": in_one_sum,
    "the last product of each sum is left out": lambda a, lda, b, ldb, ldc, m, n, k: {"c": a[:, :-1] @ b[:-1]},
}
