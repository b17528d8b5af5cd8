"""Softmax of rows."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

LOW = "wrong where all numbers of a row are far below 0: the maximum is that of the row, not 0"


KEPT = "the maximum is kept from the rows before: each row has its own"


def case(x, about, **more):
    rows, n = x.shape
    arrays = {"x": x.astype(np.float32), "y": Output((rows, n))}
    return Case(about, {**arrays, "rows": rows, "n": n}, **more)


def cases():
    for rows, n in ((3, 8), (1, 1), (2, 13), (4, 33)):
        yield case(2 * random(n).standard_normal((rows, n)), f"{rows} rows, n = {n}")
    yield case(np.array([[-1000.0, -1000.0, -1001.0], [-200.0, -201.0, -203.0]]), "scores of -1000 and -200", alone=LOW)
    yield case(np.array([[1.0, 2.0, 3.0], [1000.0, 1001.0, 999.0]]), "scores of 1000")
    yield case(np.array([[1000.0, 1001.0, 999.0], [1.0, 2.0, 3.0]]), "small numbers after large", alone=KEPT)
    yield case(np.array([[1.0, -np.inf, 2.0, -np.inf]]), "minus infinity as a mask")
    wild = random(5).standard_normal((4, 8))
    wild[2, 3] = np.nan
    yield case(wild, "a NaN in row 2")


def timed():
    rows, n = 64, 512
    x = random(1).standard_normal((rows, n))
    return case(x, f"{rows} rows, n = {n}", flop=24 * rows * n, bytes=8 * rows * n)


def shares(x):
    powers = np.exp(x - np.nanmax(x, axis=1, keepdims=True))
    return powers, powers.sum(axis=1, keepdims=True)


def reference(x, rows, n):
    powers, total = shares(x)
    return {"y": powers / total}


def bound(x, rows, n):
    away = np.nan_to_num(np.abs(x - x.max(axis=1, keepdims=True)), posinf=0)
    return {"y": HALF_ULP * (n + 8 + away) * reference(x, rows, n)["y"] + 2.0**-140}


def divided_too_early(x, rows, n):
    powers, _ = shares(x)
    return {"y": powers / np.cumsum(powers, axis=1)}


def running(x, rows, n):
    powers, total = shares(x)
    return {"y": powers / np.cumsum(total, axis=0)}


MISTAKES = {
    "each is divided by the sum so far: the division needs a loop of its own, behind the one that sums": (
        divided_too_early
    ),
    "the exponentials are not divided by their sum": lambda x, rows, n: {"y": shares(x)[0]},
    "the sum goes on from row to row": running,
}
