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


def going_on(x, z, v, m, n, d, length):
    """The squared distance is not set to 0 for each pair."""
    return {"y": np.exp(-np.cumsum(squares(x, z), axis=1) / (2 * length**2)) @ v}


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
    "the quotient is multiplied by length²: put ( ) round what stands below": lambda x, z, v, m, n, d, length: weighed(
        x, z, v, lambda s: -s / 2 * length * length
    ),
    "the sign of the exponent is wrong: points that lie far apart weigh less": lambda x, z, v, m, n, d, length: weighed(
        x, z, v, lambda s: s / (2 * length**2)
    ),
    "v is not used": lambda x, z, v, m, n, d, length: weighed(x, z, np.ones(n), lambda s: -s / (2 * length**2)),
    "the squared distance goes on from pair to pair: it begins at 0 for each": going_on,
    "the differences are not squared": lambda x, z, v, m, n, d, length: {
        "y": np.exp(-np.abs(x[:, None] - z[None]).sum(axis=2) / (2 * length**2)) @ v
    },
    "every row takes the point of row 0 of x": lambda x, z, v, m, n, d, length: reference(
        np.broadcast_to(x[:1], x.shape), z, v, m, n, d, length
    ),
    "the result is divided by n: it is the sum, not the mean": lambda x, z, v, m, n, d, length: {
        "y": reference(x, z, v, m, n, d, length)["y"] / n
    },
    "every row is divided by the sum of its weights: that is a smoother": lambda x, z, v, m, n, d, length: {
        "y": reference(x, z, v, m, n, d, length)["y"] / reference(x, z, np.ones(n), m, n, d, length)["y"]
    },
}
