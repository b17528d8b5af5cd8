"""y = w x + b."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, about, w=1.7, b=-0.6, **more):
    x = random(n).standard_normal(n).astype(np.float32)
    return Case(about, {"x": x, "w": w, "b": b, "y": Output(n), "n": n}, **more)


def cases():
    for n in (8, 1, 2, 13, 64, 67):
        yield case(n, f"n = {n}")
    yield case(5, "w = 0", w=0.0)
    yield case(0, "n = 0: nothing to do")
    x = np.array([np.inf, -np.inf, np.nan, 1e30, -0.0, 1e-42], dtype=np.float32)
    yield Case("infinities, NaN and subnormal numbers", {"x": x, "w": 2.0, "b": 1.0, "y": Output(6), "n": 6})


def timed():
    n = 1 << 20
    return case(n, f"n = {n}", flop=2 * n, bytes=8 * n)


def reference(x, w, b, n):
    w, b = np.float32(w).astype(float), np.float32(b).astype(float)
    return {"y": w * x + b}


def bound(x, w, b, n):
    return {"y": HALF_ULP * (2 * np.abs(w * x) + abs(b)) + TINY}


MISTAKES = {
    "b is not added": lambda x, w, b, n: {"y": np.float32(w) * x},
    "y is x, as in the starting file": lambda x, w, b, n: {"y": x},
    "this is w (x + b): w scales b too": lambda x, w, b, n: {"y": np.float32(w) * (x + np.float32(b))},
}
