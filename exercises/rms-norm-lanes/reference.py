"""y = x / sqrt(mean of squares + eps) * weight, with sixteen sums."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(x, about, eps=1e-6, **more):
    rows, n = x.shape
    weight = random(n).uniform(0.5, 2, n).astype(np.float32)
    arrays = {"x": x.astype(np.float32), "weight": weight, "y": Output((rows, n))}
    return Case(about, {**arrays, "rows": rows, "n": n, "eps": eps}, **more)


def cases():
    for rows, n in ((3, 32), (1, 16), (2, 37), (3, 5), (1, 67)):
        yield case(random(n).standard_normal((rows, n)) + 0.5, f"{rows} rows, n = {n}")
    yield case(np.zeros((2, 17)), "zeros")
    wild = random(5).standard_normal((4, 20))
    wild[2, 3] = np.nan
    yield case(wild, "a NaN in row 2")


def timed():
    rows, n = 64, 1024
    x = random(1).standard_normal((rows, n))
    return case(x, f"{rows} rows, n = {n}", flop=4 * rows * n, bytes=8 * rows * n)


def normalised(x, weight, total, n, eps):
    return {"y": x / np.sqrt(total[:, None] / n + np.float32(eps)) * weight}


def reference(x, weight, rows, n, eps):
    return normalised(x, weight, (x**2).sum(axis=1), n, eps)


def bound(x, weight, rows, n, eps):
    return {"y": (n / 32 + 8) * HALF_ULP * np.abs(reference(x, weight, rows, n, eps)["y"]) + TINY}


def whole_blocks(x):
    return x[:, : x.shape[1] // 16 * 16]


def first_lane_of_blocks(x):
    return (whole_blocks(x)[:, ::16] ** 2).sum(axis=1)


def first_lane(x):
    return first_lane_of_blocks(x) + (x[:, x.shape[1] // 16 * 16 :] ** 2).sum(axis=1)


MISTAKES = {
    "the total is sums[0] alone, and what is left of the row is in no sum": lambda x, weight, rows, n, eps: normalised(
        x, weight, first_lane_of_blocks(x), n, eps
    ),
    "elements at the end of a row, which fill no whole block, are left out": lambda x, weight, rows, n, eps: normalised(
        x, weight, (whole_blocks(x) ** 2).sum(axis=1), n, eps
    ),
    "only a part of the sums is added to the total": lambda x, weight, rows, n, eps: normalised(
        x, weight, first_lane(x), n, eps
    ),
}
