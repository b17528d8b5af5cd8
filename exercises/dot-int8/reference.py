"""The dot product of arrays of int8."""

import numpy as np

from kernelworks.learn.case import Case, Output, random

MANY = "right for short arrays only: a float is exact up to 2^24, so sum in int32_t"


def case(x, y, about, **more):
    arrays = {"x": x.astype(np.int8), "y": y.astype(np.int8), "result": Output(1, "int32")}
    return Case(about, {**arrays, "n": x.size}, **more)


def drawn(n, **more):
    x, y = random(n).integers(-128, 128, (2, n))
    return case(x, y, f"n = {n}", **more)


def cases():
    for n in (8, 1, 13, 67):
        yield drawn(n)
    yield case(np.array([-128, 127, -128]), np.array([-128, 127, 127]), "the largest numbers")
    yield case(np.full(40_001, 127), np.full(40_001, 113), "n = 40001, large numbers", alone=MANY)
    yield case(np.array([]), np.array([]), "n = 0: the result is 0")


def timed():
    n = 1 << 14
    return drawn(n, flop=2 * n, bytes=2 * n)


def total(x, y):
    return int((x.astype(np.int64) * y).sum())


def reference(x, y, n):
    return {"result": np.array([total(x, y)])}


def bound(x, y, n):
    return {"result": np.array([0.0])}


def narrow(x, y, n):
    products = (x.astype(np.int64) * y).astype(np.int8)
    return {"result": np.array([products.astype(np.int64).sum()])}


def whole_blocks(block):
    return lambda x, y, n: {"result": np.array([total(x[: n // block * block], y[: n // block * block])])}


MISTAKES = {
    "the sum has 8 bits and runs over": lambda x, y, n: {
        "result": np.array([total(x, y)]).astype(np.int8).astype(np.int64)
    },
    "the sum has 16 bits and runs over": lambda x, y, n: {
        "result": np.array([total(x, y)]).astype(np.int16).astype(np.int64)
    },
    "each product is cut to 8 bits": narrow,
    "the numbers are taken without a sign": lambda x, y, n: {
        "result": np.array([total(x.view(np.uint8).astype(np.int64), y.view(np.uint8))])
    },
    "this is the sum of x[i] + y[i], not of their products": lambda x, y, n: {
        "result": np.array([x.astype(np.int64).sum() + y.astype(np.int64).sum()])
    },
    "the first array is taken without a sign": lambda x, y, n: {
        "result": np.array([total(x.view(np.uint8).astype(np.int64), y)])
    },
} | {
    f"the last elements, which fill no whole block of {block}, are left out": whole_blocks(block)
    for block in (2, 4, 8, 16, 32)
}
