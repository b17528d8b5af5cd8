"""y = A x, in slices of rows."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(m, n, about, **more):
    draw = random(100 * m + n)
    a, x = (draw.standard_normal(shape).astype(np.float32) for shape in ((m, n), n))
    return Case(about, {"a": a, "x": x, "y": Output(m), "m": m, "n": n}, **more)


def cases():
    for m in (61, 7, 2, 1):
        yield case(m, 9, f"m = {m}, n = 9")


def timed():
    m, n = 2048, 1024
    return case(m, n, f"m = {m}, n = {n}", flop=2 * m * n, bytes=4 * (m * n + n + m))


def reference(a, x, m, n):
    return {"y": a @ x}


def bound(a, x, m, n):
    return {"y": (n + 1) * HALF_ULP * (np.abs(a) @ np.abs(x)) + TINY}
