"""y[i] = x[0] + ... + x[i]."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x = random(n).standard_normal(n).astype(np.float32)
    return Case(f"n = {n}", {"x": x, "y": Output(n), "n": n}, **more)


def cases():
    for n in (256, 200, 33, 1):
        yield case(n)


def timed():
    return case(256, flop=256, bytes=2048)


def reference(x, n):
    return {"y": np.cumsum(x)}


# i additions for y[i], in whichever order.
def bound(x, n):
    return {"y": np.arange(n) * HALF_ULP * np.cumsum(np.abs(x)) + TINY}


MISTAKES = {
    "this is the exclusive sum: y[i] lacks x[i]": lambda x, n: {"y": np.cumsum(x) - x},
    "y is x": lambda x, n: {"y": x},
}
