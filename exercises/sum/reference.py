"""A sum in a tree."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

LONG = "right for short arrays only: the error of a float sum grows with n, so sum in a tree"


def case(x, about, **more):
    return Case(about, {"x": x.astype(np.float32), "result": Output(1), "n": x.size}, **more)


def cases():
    for n in (8, 1, 127):
        yield case(random(n).standard_normal(n), f"n = {n}")
    for n in (256, 129, 1001):
        yield case(random(n).standard_normal(n), f"n = {n}")
    yield case(np.array([]), "n = 0: the result is 0")
    yield case(np.full(1_000_003, 0.1), "n = 1000003, all 0.1", alone=LONG)


def timed():
    n = 1 << 16
    return case(random(1).standard_normal(n), f"n = {n}", flop=n, bytes=4 * n)


def reference(x, n):
    return {"result": np.array([x.sum()])}


def bound(x, n):
    return {"result": np.array([HALF_ULP * (np.log2(n + 1) + 130) / 8 * np.abs(x).sum() + TINY])}


def first_halves(x):
    if x.size <= 128:
        return x.sum()
    return first_halves(x[: x.size // 2]) + first_halves(x[: x.size - x.size // 2])


def even_halves(x):
    if x.size <= 128:
        return x.sum()
    return even_halves(x[: x.size // 2]) + even_halves(x[x.size // 2 : x.size // 2 * 2])


def gapped_halves(x):
    if x.size <= 128:
        return x.sum()
    return gapped_halves(x[: x.size // 2]) + gapped_halves(x[x.size // 2 + 1 :])


MISTAKES = {
    "x[0] is counted twice": lambda x, n: {"result": np.array([x.sum() + (x[0] if n else 0)])},
    "one half is counted twice, and the other is not there": lambda x, n: {"result": np.array([first_halves(x)])},
    "where a piece has an odd length its last number is lost": lambda x, n: {"result": np.array([even_halves(x)])},
    "a number is left out between the halves: the second one begins at x + half": lambda x, n: {
        "result": np.array([gapped_halves(x)])
    },
}
