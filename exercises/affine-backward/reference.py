"""The derivatives of y = w x + b by x, w and b."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

LONG = (
    "right for short arrays only: the error of a float sum grows with n, so add up in a variable of type double, and "
    "store it once, after the loop"
)


def case(n, about, *, constant=False, **more):
    grad, x = random(n).standard_normal((2, n)).astype(np.float32)
    if constant:  # every addition rounds the same way for a while
        grad, x = np.full(n, 1.1, np.float32), np.full(n, 0.3, np.float32)
    outputs = {"dx": Output(n), "dw": Output(1), "db": Output(1)}
    return Case(about, {"grad": grad, "x": x, "w": -0.7, **outputs, "n": n}, **more)


def cases():
    for n in (8, 1, 2, 13, 67):
        yield case(n, f"n = {n}")
    yield case(100_003, "n = 100003, every product the same", constant=True, alone=LONG)
    yield case(0, "n = 0: the sums are 0")


def timed():
    n = 1 << 20
    return case(n, f"n = {n}", flop=5 * n, bytes=12 * n)


def reference(grad, x, w, n):
    return {"dx": np.float32(w).astype(float) * grad, "dw": np.array([grad @ x]), "db": np.array([grad.sum()])}


def bound(grad, x, w, n):
    def of_sum(terms):
        return np.array([HALF_ULP * (abs(terms.sum()) + 8 * np.abs(terms).sum()) + TINY])

    return {"dx": HALF_ULP * np.abs(w * grad) + TINY, "dw": of_sum(grad * x), "db": of_sum(grad)}


MISTAKES = {
    "dx is grad x: the factor of x[i] in y[i] is w": lambda grad, x, w, n: reference(grad, x, w, n) | {"dx": grad * x},
    "dw and db are means, not sums": lambda grad, x, w, n: {
        name: value if name == "dx" else value / n for name, value in reference(grad, x, w, n).items()
    },
}
