"""y = max(x, 0), where NaN stays."""

import numpy as np

from kernelworks.learn.case import Case, Output, random


def case(x, about, **more):
    return Case(about, {"x": x.astype(np.float32), "y": Output(x.size), "n": x.size}, **more)


def cases():
    for n in (8, 1, 13, 67):
        yield case(random(n).standard_normal(n), f"n = {n}")
    yield case(np.array([0.0, -0.0, 1e-42, -1e-42, 3e38]), "zeros, subnormal and large numbers")
    yield case(np.array([1.0, np.inf, -np.inf, 2.0]), "infinities")
    yield case(np.array([1.0, np.nan, -1.0]), "a NaN")


def timed():
    n = 1 << 20
    return case(random(1).standard_normal(n), f"n = {n}, random signs", flop=n, bytes=8 * n)


def reference(x, n):
    return {"y": np.where(x < 0, 0, x)}


def bound(x, n):
    return {"y": np.zeros(x.shape)}


MISTAKES = {
    "this is the absolute value": lambda x, n: {"y": np.abs(x)},
    "what is below 0 comes out as it is": lambda x, n: {"y": x},
}
