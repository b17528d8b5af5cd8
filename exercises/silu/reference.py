"""y = x / (1 + exp(-x))."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random


def case(x, about, **more):
    return Case(about, {"x": np.asarray(x, np.float32), "y": Output(len(x)), "n": len(x)}, **more)


def cases():
    for n in (16, 1, 13):
        yield case(2 * random(n).standard_normal(n), f"n = {n}")
    yield case([-100.0, -90.0, -20.0, 0.0, 20.0, 90.0, 100.0, 3e38], "from -100 to 3e38")
    yield case([1.0, np.nan, -1.0], "a NaN")


def timed():
    n = 1 << 14
    return case(random(1).standard_normal(n), f"n = {n}", flop=20 * n, bytes=8 * n)


def reference(x, n):
    with np.errstate(over="ignore"):
        return {"y": x / (1 + np.exp(-x))}


def bound(x, n):
    return {"y": 8 * HALF_ULP * np.abs(reference(x, n)["y"]) + 2.0**-120}


MISTAKES = {
    "this is the sigmoid alone: x times it is missing": lambda x, n: {"y": 1 / (1 + np.exp(-x))},
    "the parentheses are missing: x is divided by the whole of (1 + exp(-x))": lambda x, n: {
        "y": (x + np.exp(-x)).astype(np.float32)  # infinite where the exponential is in float
    },
    "the sign in the exponent is the other one": lambda x, n: {"y": x / (1 + np.exp(x))},
    "the exponential is 2 to the power of x, not e": lambda x, n: {"y": x / (1 + np.exp2(-x))},
}
