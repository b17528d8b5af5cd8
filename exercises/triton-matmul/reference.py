"""c = a b, of float16 and in float32."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Columns, Output, Rows, random

DEPTH = 32


def case(m, n, k, about="", gaps=(0, 0, 0), turned=False, **more):
    draw = random(m * 10000 + n * 100 + k)
    a, b = (draw.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    kept = Columns(b, gaps[1]) if turned else Rows(b, gaps[1])
    arrays = {"a": Rows(a, gaps[0]), "b": kept, "c": Output((m, n), gap=gaps[2])}
    return Case(about or f"M = {m}, N = {n}, K = {k}", arrays, **more)


def cases():
    yield case(32, 32, 32)
    yield case(64, 96, 64)
    yield case(50, 40, 70, gaps=(2, 8, 3), about="M = 50, N = 40, K = 70, rows with gaps")
    yield case(33, 17, 40, gaps=(8, 5, 0), turned=True, about="M = 33, N = 17, K = 40, b lies column by column")
    yield case(1, 80, 200)


def timed():
    m = n = k = 4096
    return case(m, n, k, flop=2.0 * m * n * k, bytes=4.0 * (m * k + k * n + 2 * m * n))


def reference(a, b):
    return {"c": a @ b}


# A product of two float16 is exact in float32. Tensor cores cut off where others round: a sum is off by up to two half
# units for each element.
def bound(a, b):
    return {"c": 2 * a.shape[1] * HALF_ULP * (np.abs(a) @ np.abs(b))}


def first_tiles(a, b):
    steps = -(-a.shape[1] // DEPTH)
    return {"c": steps * (a[:, :DEPTH] @ b[:DEPTH])}


def last_tiles(a, b):
    start = (a.shape[1] - 1) // DEPTH * DEPTH
    return {"c": a[:, start:] @ b[start:]}


MISTAKES = {
    "c is 0, as in the starting file": lambda a, b: {"c": 0 * (a @ b)},
    "every step along K takes the first tiles again": first_tiles,
    "only the last step along K is in c: hand total to tl.dot, or add to it": last_tiles,
}
