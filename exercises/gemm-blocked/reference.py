"""C = A B, in blocks."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

BLOCK = 32


def case(m, n, k, about, **more):
    draw = random(1000 * m + 10 * n + k)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return Case(about, {"a": a, "b": b, "c": Output((m, n)), "m": m, "n": n, "k": k}, **more)


def cases():
    yield case(32, 32, 32, "m = n = k = 32, one block")
    yield case(3, 5, 7, "m = 3, n = 5, k = 7, less than a block")
    yield case(33, 32, 64, "m = 33, n = 32, k = 64")
    yield case(32, 36, 32, "m = 32, n = 36, k = 32", alone="wrong in columns that fill no whole block")
    yield case(32, 32, 70, "m = 32, n = 32, k = 70")
    yield case(35, 67, 33, "m = 35, n = 67, k = 33")
    yield case(2, 3, 0, "k = 0: C is 0")


def timed():
    n = 256
    return case(n, n, n, f"m = n = k = {n}", flop=2 * n**3, bytes=12 * n**2)


def reference(a, b, m, n, k):
    return {"c": a @ b}


def bound(a, b, m, n, k):
    return {"c": (k + 1) * HALF_ULP * (np.abs(a) @ np.abs(b)) + TINY}


def part(a, b, begin, end):
    return {"c": a[:, begin:end] @ b[begin:end]}


def whole_columns(a, b, m, n, k):
    found = a @ b
    found[:, n // BLOCK * BLOCK :] = 0
    return {"c": found}


MISTAKES = {
    "only the first block of p is there": lambda a, b, m, n, k: part(a, b, 0, BLOCK),
    "only the last block of p is there": lambda a, b, m, n, k: part(a, b, (k - 1) // BLOCK * BLOCK, k),
    "columns that fill no whole block are left out": whole_columns,
    "the last products of each sum are left out, which fill no whole block": lambda a, b, m, n, k: part(
        a, b, 0, k // BLOCK * BLOCK
    ),
}
