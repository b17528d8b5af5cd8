"""y = 0.5 x (1 + erf(x / sqrt(2)))."""

import math

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

erf = np.vectorize(math.erf, otypes=[float])


def case(x, about, **more):
    return Case(about, {"x": np.asarray(x, np.float32), "y": Output(len(x)), "n": len(x)}, **more)


def cases():
    for n in (16, 1, 13):
        yield case(2 * random(n).standard_normal(n), f"n = {n}")
    yield case([-9.0, -5.0, -3.0, -0.01, 0.0, 0.01, 3.0, 9.0], "from -9 to 9")
    yield case([1e30, -1e30, 1e-40], "very large and very small numbers")
    yield case([1.0, np.nan, -1.0], "a NaN")


def timed():
    n = 1 << 14
    return case(random(1).standard_normal(n), f"n = {n}", flop=20 * n, bytes=8 * n)


def reference(x, n):
    return {"y": 0.5 * x * (1 + erf(x / math.sqrt(2)))}


def bound(x, n):
    return {"y": HALF_ULP * 4 * (np.abs(reference(x, n)["y"]) + np.abs(x)) + TINY}


def by_tanh(x, n):
    return {"y": 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))}


MISTAKES = {
    "this is the approximation by tanh: close, and another function": by_tanh,
    "this is the approximation by a sigmoid: close, and another function": lambda x, n: {
        "y": x / (1 + np.exp(-1.702 * x))
    },
    "the parentheses are missing: 0.5 x is a factor of the whole": lambda x, n: {"y": 0.5 * x + erf(x / math.sqrt(2))},
    "erf is taken of x, and 1 is not added": lambda x, n: {"y": 0.5 * x * erf(x)},
    "the factor 0.5 is missing": lambda x, n: {"y": x * (1 + erf(x / math.sqrt(2)))},
    "x is multiplied by the root of 2 where it is to be divided by it": lambda x, n: {
        "y": 0.5 * x * (1 + erf(x * math.sqrt(2)))
    },
    "1 / sqrt(2) has too few digits: a float holds eight, 0.70710678f": lambda x, n: {
        "y": 0.5 * x * (1 + erf(0.707 * x))
    },
    "erf is taken of x, not of x / sqrt(2)": lambda x, n: {"y": 0.5 * x * (1 + erf(x))},
}
