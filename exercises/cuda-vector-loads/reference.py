"""y = a x."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x = random(n).standard_normal(n).astype(np.float32)
    return Case(f"n = {n}", {"x": x, "a": 1.25, "y": Output(n), "n": n}, **more)


def cases():
    for n in (600, 515, 3, 1, 8192):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=n, bytes=8 * n)


def reference(x, a, n):
    return {"y": a * x}


def bound(x, a, n):
    return {"y": HALF_ULP * np.abs(a * x) + TINY}


def first_of_four(x, a, n):
    whole = n // 4 * 4
    return {"y": a * np.where(np.arange(n) < whole, x[np.arange(n) // 4 * 4], x)}


MISTAKES = {"y[i] is a x[i - i % 4]: all four are the first one": first_of_four}
