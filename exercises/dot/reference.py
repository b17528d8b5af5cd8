"""The dot product of two arrays."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

LONG = (
    "right for short arrays only: the error of a float sum grows with n, so add up in a variable of type double, and "
    "store it once, after the loop"
)


def case(n, about, *, constant=False, **more):
    x, y = random(n).standard_normal((2, n)).astype(np.float32)
    if constant:  # every addition rounds the same way for a while
        x, y = np.full(n, 1.1, np.float32), np.full(n, 0.3, np.float32)
    return Case(about, {"x": x, "y": y, "result": Output(1), "n": n}, **more)


def cases():
    for n in (8, 1, 3, 13, 64, 67):
        yield case(n, f"n = {n}")
    yield case(0, "n = 0: the result is 0")
    yield case(200_003, "n = 200003, every product the same", constant=True, alone=LONG)


def timed():
    n = 1 << 11
    return case(n, f"n = {n}, in the L1 cache", flop=2 * n, bytes=8 * n)


def reference(x, y, n):
    return {"result": np.array([x @ y])}


def bound(x, y, n):
    return {"result": np.array([HALF_ULP * (abs(x @ y) + 8 * (np.abs(x) @ np.abs(y))) + TINY])}


def whole_blocks(x, y, n):
    return reference(x[: n // 4 * 4], y[: n // 4 * 4], n)


MISTAKES = {
    "this adds x[i] + y[i]: a dot product adds products": lambda x, y, n: {"result": np.array([(x + y).sum()])},
    "the last n % 4 products are left out": whole_blocks,
    "this is the dot product of x with itself": lambda x, y, n: {"result": np.array([x @ x])},
}
