"""y[0] = sum of x."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

BLOCK = 1024


def case(n, **more):
    x = random(n).standard_normal(n).astype(np.float32) + np.float32(0.1)
    return Case(f"n = {n}", {"x": x, "y": Output(1)}, **more)


def cases():
    for n in (1024, 4096, 3000, 5, 40000):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=n, bytes=4 * n)


def reference(x):
    return {"y": np.array([x.sum()])}


# A tree of additions rounds once a level. One that adds 32 of a block after each other, and partials by a tree or 64
# after each other, is within this too; a sum from the first element to the last is not.
def bound(x):
    return {"y": np.array([(96 + len(x) / 4096) * HALF_ULP * np.abs(x).sum() + TINY])}


def of_first(count):
    return lambda x: {"y": np.array([x[: count(len(x))].sum()])}


MISTAKES = {
    "the last elements, which fill no block of 1024, are not in the sum": of_first(
        lambda n: max(n // BLOCK * BLOCK, min(n, BLOCK))
    ),
    "only the first 32768 elements are in the sum: the second launch takes 32 partials": of_first(lambda n: 32 * BLOCK),
    "every program takes the first block again": lambda x: {"y": np.array([-(-len(x) // BLOCK) * x[:BLOCK].sum()])},
}
