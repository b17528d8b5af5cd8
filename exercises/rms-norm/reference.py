"""y = x / sqrt(mean of squares + eps) * weight."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

LARGE = "right for small numbers only: the square of a large number is infinite in float"


def case(x, about, eps=1e-3, **more):
    rows, n = x.shape
    weight = random(n).uniform(0.5, 2, n).astype(np.float32)
    arrays = {"x": x.astype(np.float32), "weight": weight, "y": Output((rows, n))}
    return Case(about, {**arrays, "rows": rows, "n": n, "eps": eps}, **more)


def cases():
    for rows, n in ((3, 8), (2, 13), (4, 1), (1, 67)):
        yield case(random(n).standard_normal((rows, n)) + 0.5, f"{rows} rows, n = {n}")
    yield case(np.array([[0.0, 0.0, 0.0], [1e-3, 2e-3, -1e-3]]), "a row of zeros, a row of small numbers")
    yield case(np.array([[1e30, -2e30, 3e30, 1e29]]), "numbers of 1e30", alone=LARGE)
    wild = random(5).standard_normal((4, 8))
    wild[2, 3] = np.nan
    yield case(wild, "a NaN in row 2")


def timed():
    rows, n = 64, 1024
    x = random(1).standard_normal((rows, n))
    return case(x, f"{rows} rows, n = {n}", flop=4 * rows * n, bytes=8 * rows * n)


def normalised(x, weight, size):
    return {"y": x / size * weight}


def squares(x):
    return (x**2).mean(axis=1, keepdims=True)


def reference(x, weight, rows, n, eps):
    return normalised(x, weight, np.sqrt(squares(x) + np.float32(eps)))


def bound(x, weight, rows, n, eps):
    return {"y": 8 * HALF_ULP * np.abs(reference(x, weight, rows, n, eps)["y"]) + TINY}


def layer_norm(x, weight, rows, n, eps):
    centred = x - x.mean(axis=1, keepdims=True)
    return normalised(centred, weight, np.sqrt(squares(centred) + np.float32(eps)))


def running(x, weight, rows, n, eps):
    return normalised(x, weight, np.sqrt(np.cumsum(squares(x), axis=0) + np.float32(eps)))


MISTAKES = {
    "the sum of squares is 0: no element of the row is in it": lambda x, weight, rows, n, eps: normalised(
        x, weight, np.sqrt(np.float32(eps))
    ),
    "eps is added outside the root": lambda x, weight, rows, n, eps: normalised(
        x, weight, np.sqrt(squares(x)) + np.float32(eps)
    ),
    "it divides by the root of the sum of squares, not by their mean": lambda x, weight, rows, n, eps: normalised(
        x, weight, np.sqrt(n * squares(x) + np.float32(eps))
    ),
    "the sum is divided by the number of rows, not by n": lambda x, weight, rows, n, eps: normalised(
        x, weight, np.sqrt(squares(x) * n / rows + np.float32(eps))
    ),
    "this is LayerNorm: RMSNorm subtracts no mean": layer_norm,
    "the sum of squares goes on from row to row": running,
    "weight is not used": lambda x, weight, rows, n, eps: reference(x, np.ones(n), rows, n, eps),
}
