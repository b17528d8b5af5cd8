"""y = exp(x - max x) / sum of exp(x - max x), of each row."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, Rows, random


def case(rows, columns, size=1.0, shift=0.0, gaps=(0, 0), about="", **more):
    x = (random(rows * 1000 + columns).standard_normal((rows, columns)) * size + shift).astype(np.float32)
    arguments = {"x": Rows(x, gaps[0]), "y": Output((rows, columns), gap=gaps[1])}
    return Case(about or f"{rows} rows, {columns} columns", arguments, **more)


def cases():
    yield case(2, 128)
    yield case(3, 300)
    yield case(1, 2000)
    yield case(2, 37, gaps=(11, 3), about="2 rows of 37 columns, 48 and 40 elements apart")
    yield case(2, 200, size=10.0, shift=100.0, about="elements near 100")
    yield case(2, 150, shift=-200.0, about="elements near -200")
    yield case(3, 1)


def timed():
    rows, columns = 16384, 4096
    return case(rows, columns, flop=4.0 * rows * columns, bytes=8.0 * rows * columns)


def reference(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": e / e.sum(axis=1, keepdims=True)}


# The difference rounds once and exp is within 2 units in the last place: an exponential is off by
# (|x - max| + 4) half units. The sum adds a rounding for each element, the division one. Below the smallest normal
# number an exponential is off by a unit of that size.
def bound(x):
    d = x - x.max(axis=1, keepdims=True)
    e = np.exp(d)
    s = e.sum(axis=1, keepdims=True)
    off = HALF_ULP * (np.abs(d) + 4)
    total = (e * off).sum(axis=1, keepdims=True) / s + (x.shape[1] + 2) * HALF_ULP
    return {"y": e / s * (off + total) * (1 + 1e-4) + 8 * TINY}


def undivided(x):
    return {"y": np.exp(x - x.max(axis=1, keepdims=True))}


def zeros_behind(x):
    lanes = 1 << (x.shape[1] - 1).bit_length()
    wide = np.pad(x, ((0, 0), (0, lanes - x.shape[1])))
    return {"y": reference(wide)["y"][:, : x.shape[1]]}


def powers_of_two(x):
    powers = np.exp2(x - x.max(1, keepdims=True))
    return {"y": powers / powers.sum(1, keepdims=True)}


MISTAKES = {
    "the powers are of 2, not of e: tl.exp": powers_of_two,
    "exp(x - max) is not divided by the sum": undivided,
    "the sum has an element of 0 too many for each lane that is off: say other=-float('inf')": zeros_behind,
    "y is x, as in the starting file": lambda x: {"y": x},
}
