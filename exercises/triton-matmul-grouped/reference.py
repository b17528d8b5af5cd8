"""c = a b, of float16 and in float32, the tiles in groups of rows."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, Rows, random

TILE, GROUP = 16, 3


def case(m, n, k, gaps=(0, 0), about="", **more):
    draw = random(m * 10000 + n * 100 + k)
    a, b = (draw.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    arrays = {"a": Rows(a, gaps[0]), "b": Rows(b, gaps[1]), "c": Output((m, n))}
    return Case(about or f"M = {m}, N = {n}, K = {k}", arrays, **more)


def cases():
    yield case(48, 32, 32)
    yield case(96, 64, 16)
    yield case(70, 41, 40, gaps=(8, 7), about="M = 70, N = 41, K = 40: 5 rows of tiles, rows with gaps")


def timed():
    m = n = k = 4096
    return case(m, n, k, flop=2.0 * m * n * k, bytes=4.0 * (m * k + k * n + 2 * m * n))


def reference(a, b):
    return {"c": a @ b}


# As of triton-matmul.
def bound(a, b):
    return {"c": 2 * a.shape[1] * HALF_ULP * (np.abs(a) @ np.abs(b))}


def owners(a, b):
    """The program that writes each element."""
    found = np.zeros((len(a), b.shape[1]), int)
    down, across = -(-len(a) // TILE), -(-b.shape[1] // TILE)
    number = 0
    for first in range(0, down, GROUP):
        for column in range(across):
            for row in range(first, min(first + GROUP, down)):
                found[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE] = number
                number += 1
    return {"c": found}


MISTAKES = {}
