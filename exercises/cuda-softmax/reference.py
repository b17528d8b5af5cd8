"""y = exp(x - max x) / sum of exp(x - max x), of each row."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(rows, columns, size=1.0, shift=0.0, about="", **more):
    x = (random(rows * 1000 + columns).standard_normal((rows, columns)) * size + shift).astype(np.float32)
    arguments = {"x": x, "y": Output((rows, columns)), "rows": rows, "columns": columns}
    return Case(about or f"{rows} rows, {columns} columns", arguments, **more)


BEHIND = "fails where the largest element is the 201st of a row: each thread looks at every 128th element up to the end"
BELOW = "fails where all elements are far below 0: the maximum must not start at 0"


def cases():
    yield case(2, 128)
    yield case(3, 300)
    yield case(1, 1100)
    yield case(2, 37)
    yield case(2, 200, size=10.0, shift=100.0, about="elements near 100")
    late = case(2, 260, about="1000 at place 200 of each row", alone=BEHIND)
    late.arguments["x"][:, 200] = 1000.0
    yield late
    yield case(2, 150, shift=-200.0, about="elements near -200", alone=BELOW)


def timed():
    rows, columns = 16384, 4096
    return case(rows, columns, flop=4.0 * rows * columns, bytes=8.0 * rows * columns)


def reference(x, rows, columns):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": e / e.sum(axis=1, keepdims=True)}


# The difference rounds once and expf is within 2 units in the last place: an exponential is off by
# (|x - max| + 4) half units. The sum adds a rounding for each element, the division one. Below the smallest normal
# number an exponential is off by a unit of that size.
def bound(x, rows, columns):
    d = x - x.max(axis=1, keepdims=True)
    e = np.exp(d)
    s = e.sum(axis=1, keepdims=True)
    off = HALF_ULP * (np.abs(d) + 4)
    total = (e * off).sum(axis=1, keepdims=True) / s + (columns + 2) * HALF_ULP
    return {"y": e / s * (off + total) * (1 + 1e-4) + 8 * TINY}


def undivided(x, rows, columns):
    return {"y": np.exp(x - x.max(axis=1, keepdims=True))}


def own_sums(x, rows, columns):
    e = undivided(x, rows, columns)["y"]
    sums = np.stack([e[:, c::128].sum(axis=1) for c in range(min(columns, 128))], axis=1)
    return {"y": e / sums[:, np.arange(columns) % 128]}


def own_maxima(x, rows, columns):
    m = np.stack([x[:, c::128].max(axis=1) for c in range(min(columns, 128))], axis=1)[:, np.arange(columns) % 128]
    own = np.exp(x - m)
    sums = np.stack([own[:, c::128].sum(axis=1) for c in range(min(columns, 128))], axis=1)
    return {"y": own / sums.sum(axis=1, keepdims=True)}


def plain(x, rows, columns):
    return {"y": x / undivided(x, rows, columns)["y"].sum(axis=1, keepdims=True)}


def rows_at_their_number(x, rows, columns):
    found = np.stack([x.reshape(-1)[i : i + columns] for i in range(rows)])
    return reference(found, rows, columns)


MISTAKES = {
    "each thread subtracts its own maximum, not that of the row, which is in s[0] behind the tree": own_maxima,
    "x is divided by the sum, not exp(x - max)": plain,
    "row i is read from element i on: it begins at i * columns": rows_at_their_number,
    "exp(x - max) is not divided by the sum": undivided,
    "each thread divides by its own sum, not by that of the row": own_sums,
}
