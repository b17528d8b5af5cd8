"""y is x with rows and columns exchanged."""

import numpy as np

from kernelworks.learn.case import Case, Output, random


def case(rows, columns, **more):
    x = random(rows * 1000 + columns).standard_normal((rows, columns)).astype(np.float32)
    arguments = {"x": x, "y": Output((columns, rows)), "rows": rows, "columns": columns}
    return Case(f"{rows} rows, {columns} columns", arguments, **more)


def cases():
    for rows, columns in ((32, 32), (40, 33), (31, 70), (64, 96)):
        yield case(rows, columns)


def timed():
    n = 8192
    return case(n, n, bytes=8 * n * n)


def reference(x, rows, columns):
    return {"y": x.T}


def bound(x, rows, columns):
    return {"y": np.zeros((columns, rows))}


MISTAKES = {"y is x, not its transpose": lambda x, rows, columns: {"y": x.reshape(columns, rows)}}
