"""y = a x."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x = random(n).standard_normal(n).astype(np.float32)
    return Case(f"n = {n}", {"x": x, "a": 1.25, "y": Output(n), "n": n}, **more)


def cases():
    for n in (1, 512, 513, 5000):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=n, bytes=8 * n)


def reference(x, a, n):
    return {"y": a * x}


def bound(x, a, n):
    return {"y": HALF_ULP * np.abs(a * x) + TINY}


MISTAKES = {"y is x": lambda x, a, n: {"y": x}}
