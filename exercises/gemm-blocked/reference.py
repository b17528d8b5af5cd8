"""C = A B, in blocks."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

DEEP, WIDE = 64, 512


def case(m, n, k, about, **more):
    draw = random(1000 * m + 10 * n + k)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return Case(about, {"a": a, "b": b, "c": Output((m, n)), "m": m, "n": n, "k": k}, **more)


def cases():
    yield case(4, 32, 16, "m = 4, n = 32, k = 16, less than a block")
    yield case(3, 5, 7, "m = 3, n = 5, k = 7")
    yield case(5, 512, 64, "m = 5, n = 512, k = 64, one block")
    yield case(2, 516, 64, "m = 2, n = 516, k = 64", alone="wrong in columns that fill no whole block")
    yield case(3, 32, 131, "m = 3, n = 32, k = 131, more than two blocks")
    yield case(3, 515, 67, "m = 3, n = 515, k = 67")
    yield case(2, 3, 0, "k = 0: C is 0")


def timed():
    n = 768
    return case(n, n, n, f"m = n = k = {n}", flop=2 * n**3, bytes=12 * n**2)


def reference(a, b, m, n, k):
    return {"c": a @ b}


def bound(a, b, m, n, k):
    return {"c": (k + 1) * HALF_ULP * (np.abs(a) @ np.abs(b)) + TINY}


def part(a, b, begin, end):
    return {"c": a[:, begin:end] @ b[begin:end]}


def whole_columns(a, b, m, n, k):
    found = a @ b
    found[:, n // WIDE * WIDE :] = 0
    return {"c": found}


MISTAKES = {
    "only the first block of p is there": lambda a, b, m, n, k: part(a, b, 0, DEEP),
    "only the last block of p is there": lambda a, b, m, n, k: part(a, b, (k - 1) // DEEP * DEEP, k),
    "columns that fill no whole block are left out": whole_columns,
    "the last k % 4 products of each sum are left out": lambda a, b, m, n, k: part(a, b, 0, k // 4 * 4),
}
