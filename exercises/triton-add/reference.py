"""y = x + z."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x, z = random(n).standard_normal((2, n)).astype(np.float32)
    return Case(f"n = {n}", {"x": x, "z": z, "y": Output(n)}, **more)


def cases():
    for n in (1024, 2048, 1000, 5000, 1, 0):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=n, bytes=12 * n)


def reference(x, z):
    return {"y": x + z}


def bound(x, z):
    return {"y": HALF_ULP * np.abs(x + z) + TINY}


MISTAKES = {
    "y is 2 x: z is not read": lambda x, z: {"y": 2 * x},
    "y is x": lambda x, z: {"y": x},
}
