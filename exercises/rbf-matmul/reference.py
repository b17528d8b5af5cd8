"""K v for the Gaussian kernel function."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

FAR = "right near 0 only: far from 0 the distance by norms is rounding error, so take differences"


def case(m, n, d, about, length=1.5, at=0.0, **more):
    draw = random(100 * m + 10 * n + d)
    x, z = (np.float32(at) + draw.standard_normal(shape).astype(np.float32) for shape in ((m, d), (n, d)))
    arrays = {"x": x, "z": z, "v": draw.standard_normal(n).astype(np.float32), "y": Output(m)}
    return Case(about, {**arrays, "m": m, "n": n, "d": d, "length": length}, **more)


def cases():
    yield case(4, 8, 3, "m = 4, n = 8, d = 3")
    yield case(1, 1, 1, "one pair")
    yield case(3, 13, 5, "m = 3, n = 13, d = 5")
    yield case(5, 6, 2, "m = 5, n = 6, length 0.4", length=0.4)
    yield case(3, 5, 2, "points near (3000, 3000)", at=3000.0, alone=FAR)


def timed():
    m, n, d = 64, 512, 8
    flop = m * n * (3 * d + 20)
    return case(m, n, d, f"m = {m}, n = {n}, d = {d}", flop=flop, bytes=4 * (m + n) * (d + 1))


def squares(x, z):
    return ((x[:, None] - z[None]) ** 2).sum(axis=2)


def reference(x, z, v, m, n, d, length):
    return {"y": np.exp(-squares(x, z) / (2 * float(np.float32(length)) ** 2)) @ v}


def bound(x, z, v, m, n, d, length):
    square = squares(x, z) / length**2
    return {"y": HALF_ULP * (np.exp(-square / 2) * (n + 8 + (d + 4) * square)) @ np.abs(v) + 2.0**-120}


def weighed(x, z, v, exponent):
    return {"y": np.exp(exponent(squares(x, z))) @ v}


MISTAKES = {
    "every distance is 0: this is the sum of v": lambda x, z, v, m, n, d, length: {"y": np.full(m, v.sum())},
    "length is not squared": lambda x, z, v, m, n, d, length: weighed(x, z, v, lambda s: -s / (2 * length)),
    "the factor 2 below is missing": lambda x, z, v, m, n, d, length: weighed(x, z, v, lambda s: -s / length**2),
    "this is the exponential of the distance, not of its square": lambda x, z, v, m, n, d, length: weighed(
        x, z, v, lambda s: -np.sqrt(s) / length
    ),
    "the sum goes on from row to row": lambda x, z, v, m, n, d, length: {
        "y": np.cumsum(reference(x, z, v, m, n, d, length)["y"])
    },
}
