"""y = A x + bias."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, Rows, random

SYMMETRIC = "right only for symmetrical matrices: it takes A[j, i] where A[i, j] is meant"


def case(m, n, gap, about, **more):
    draw = random(100 * m + n)
    a, x, bias = (draw.standard_normal(shape).astype(np.float32) for shape in ((m, n), n, m))
    arrays = {"a": Rows(a, gap), "lda": n + gap, "x": x, "bias": bias, "y": Output(m)}
    return Case(about, {**arrays, "m": m, "n": n}, **more)


def cases():
    yield case(4, 8, 0, "m = 4, n = 8")
    yield case(1, 1, 0, "m = 1, n = 1")
    yield case(3, 13, 0, "m = 3, n = 13")
    yield case(5, 7, 2, "m = 5, n = 7, two elements between the rows")
    yield case(6, 6, 0, "m = n = 6, not symmetrical")
    yield case(3, 0, 0, "n = 0: y is the bias")


def timed():
    m, n = 1024, 1024
    return case(m, n, 0, f"m = n = {m}", flop=2 * m * n, bytes=4 * (m * n + n + 2 * m))


def reference(a, lda, x, bias, m, n):
    return {"y": bias + a @ x}


def bound(a, lda, x, bias, m, n):
    return {"y": (n + 2) * HALF_ULP * (np.abs(bias) + np.abs(a) @ np.abs(x)) + TINY}


def transposed(a, lda, x, bias, m, n):
    return {"y": bias + (a.T if m == n else a) @ x}


def by_row(a, lda, x, bias, m, n):
    own = np.zeros(m)
    own[: min(m, n)] = x[:m]
    return {"y": bias + a.sum(1) * own}


def last_product(a, lda, x, bias, m, n):
    return {"y": bias + a[:, -1] * x[-1]} if n else {"y": bias}


MISTAKES = {
    "every row is row 0: where does row i begin?": lambda a, lda, x, bias, m, n: {"y": bias + a[0] @ x},
    SYMMETRIC: transposed,
    "the sum goes on from row to row": lambda a, lda, x, bias, m, n: {"y": np.cumsum(bias + a @ x)},
    "the sum goes on from row to row: it begins anew where it is made inside the loop over i": (
        lambda a, lda, x, bias, m, n: {"y": bias + np.cumsum(a @ x)}
    ),
    "it takes x[i] where x[j] is meant": by_row,
    "only the last product of each sum is there: the sum is made before the inner loop, and grows by += in it": (
        last_product
    ),
    "bias is not added": lambda a, lda, x, bias, m, n: {"y": a @ x},
    "every row gets bias[0]": lambda a, lda, x, bias, m, n: {"y": bias[0] + a @ x},
}
