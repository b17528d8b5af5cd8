"""The index of each row's largest number."""

import numpy as np

from kernelworks.learn.case import Case, Output, random

EQUAL = "of equal numbers the first counts"
NEGATIVE = "right only where a row has a number above 0: begin with the row's first number, not with 0"
NAN = "a NaN counts as the largest, and the first one of them"


def case(x, about, **more):
    rows, n = x.shape
    arrays = {"x": x.astype(np.float32), "index": Output(rows, "int64")}
    return Case(about, {**arrays, "rows": rows, "n": n}, **more)


def cases():
    for rows, n in ((4, 8), (3, 1), (2, 13), (5, 33)):
        x = random(n).standard_normal((rows, n))
        x[:, n // 2] = 0.5 + np.abs(x[:, n // 2])  # the largest may be positive here
        yield case(x, f"{rows} rows, n = {n}")
    for n in (8, 13):
        yield case(np.eye(n) - 0.5 + random(n).uniform(0, 0.4, (n, n)), f"n = {n}, the largest of row i at i")
    yield case(np.array([[1.0, 3.0, 3.0, 2.0], [0.0, -0.0, 0.0, -1.0]]), "equal numbers", alone=EQUAL)
    yield case(np.array([[-5.0, -2.0, -3.0, -4.0], [-9.0, -np.inf, -7.0, -8.0]]), "negative numbers", alone=NEGATIVE)
    yield case(np.array([[1.0, np.nan, 3.0, np.nan], [2.0, np.inf, 5.0, 1.0]]), "NaN", alone=NAN)


def timed():
    rows, n = 16, 4096
    return case(random(1).standard_normal((rows, n)), f"{rows} rows, n = {n}", flop=rows * n, bytes=4 * rows * n)


def reference(x, rows, n):
    return {"index": x.argmax(axis=1)}


def bound(x, rows, n):
    return {"index": np.zeros(rows)}


def last_of_equal(x, rows, n):
    seen = np.nan_to_num(x, nan=-np.inf)
    return {"index": n - 1 - seen[:, ::-1].argmax(axis=1)}


def without_last(block):
    """The rest of n that fills no block, or the last number for a block of 0, is not looked at."""
    return lambda x, rows, n: {
        "index": x[:, : n // block * block if block else n - 1].argmax(axis=1) if n > max(block, 1) else np.zeros(rows)
    }


MISTAKES = {
    "the index is the one in its row, not in the whole array": lambda x, rows, n: {
        "index": np.arange(rows) * n + x.argmax(axis=1)
    },
    "this is where the largest absolute value stands": lambda x, rows, n: {"index": np.abs(x).argmax(axis=1)},
    "this is the largest number, not where it stands": lambda x, rows, n: {
        "index": np.trunc(np.nan_to_num(x.max(axis=1), nan=0, posinf=0, neginf=0))
    },
    "every row takes the numbers of row 0": lambda x, rows, n: {"index": np.repeat(x[:1].argmax(axis=1), rows)},
    "this is where the smallest number stands": lambda x, rows, n: {"index": x.argmin(axis=1)},
    "the last number of each row is not looked at": without_last(0),
}
