"""Rotary position embedding, pairs of halves."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

FAR = "right for small positions only: after some thousand the angle in float is off, so compute it in double"

WHOLE = "every pair turns by the same angle: -2 * c / d divides integers and is 0, so write -2.0 * c / d"


def case(length, d, offset, about, **more):
    x = random(10 * length + d).standard_normal((length, d)).astype(np.float32)
    arrays = {"x": x, "y": Output((length, d)), "length": length, "d": d, "theta": 10000.0, "offset": offset}
    return Case(about, arrays, **more)


def cases():
    yield case(4, 8, 0, "four rows, d = 8")
    yield case(1, 2, 3, "one row, d = 2, offset 3")
    yield case(5, 6, 7, "five rows, d = 6, offset 7")
    yield case(2, 4, 400_003, "offset 400003", alone=FAR)


def timed():
    length, d = 128, 64
    return case(length, d, 0, f"{length} rows, d = {d}", flop=40 * length * d, bytes=8 * length * d)


def angles(length, d, theta, offset, power=2.0):
    return (offset + np.arange(length))[:, None] * float(np.float32(theta)) ** (-power * np.arange(d // 2) / d)


def rotate(x, angle):
    first, second = np.split(x, 2, axis=1)
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=1)


def reference(x, length, d, theta, offset):
    return {"y": rotate(x, angles(length, d, theta, offset))}


def bound(x, length, d, theta, offset):
    size = np.abs(x[:, : d // 2]) + np.abs(x[:, d // 2 :])
    return {"y": 4 * HALF_ULP * np.concatenate((size, size), axis=1) + TINY}


def neighbours(x, length, d, theta, offset):
    turned = rotate(np.concatenate((x[:, ::2], x[:, 1::2]), axis=1), angles(length, d, theta, offset))
    found = np.empty_like(turned)
    found[:, ::2], found[:, 1::2] = turned[:, : d // 2], turned[:, d // 2 :]
    return {"y": found}


def read_as_neighbours(x, length, d, theta, offset):
    return {"y": rotate(np.concatenate((x[:, ::2], x[:, 1::2]), axis=1), angles(length, d, theta, offset))}


def signed(x, length, d, theta, offset, first, second):
    one, other = np.split(x, 2, axis=1)
    cosine, sine = (of(angles(length, d, theta, offset)) for of in (np.cos, np.sin))
    return {"y": np.concatenate((one * cosine + first * other * sine, other * cosine + second * one * sine), axis=1)}


def too_early(x, length, d, theta, offset):
    one, other = np.split(x, 2, axis=1)
    cosine, sine = (of(angles(length, d, theta, offset)) for of in (np.cos, np.sin))
    one = one * cosine - other * sine
    return {"y": np.concatenate((one, other * cosine + one * sine), axis=1)}


MISTAKES = {
    "the terms with the sine are missing": lambda x, length, d, theta, offset: {
        "y": x * np.tile(np.cos(angles(length, d, theta, offset)), 2)
    },
    "neighbours are taken as pairs: a pair is c and c + d/2": neighbours,
    "it turns the other way": lambda x, length, d, theta, offset: {"y": rotate(x, -angles(length, d, theta, offset))},
    "offset is not used": lambda x, length, d, theta, offset: {"y": rotate(x, angles(length, d, theta, 0))},
    "the exponent of theta is -c / d, and should be -2 c / d": lambda x, length, d, theta, offset: {
        "y": rotate(x, angles(length, d, theta, offset, 1.0))
    },
    "the numbers of a pair are read side by side: a pair is c and c + d/2": read_as_neighbours,
    WHOLE: lambda x, length, d, theta, offset: {"y": rotate(x, angles(length, d, theta, offset, 0.0))},
    "the exponent of theta is 2 c / d, and should be -2 c / d": lambda x, length, d, theta, offset: {
        "y": rotate(x, angles(length, d, theta, offset, -2.0))
    },
    "the exponent of theta is -4 c / d, and should be -2 c / d": lambda x, length, d, theta, offset: {
        "y": rotate(x, angles(length, d, theta, offset, 4.0))
    },
    "the sign of the sine in the first half: x[c] cos - x[c + d/2] sin": lambda x, length, d, theta, offset: signed(
        x, length, d, theta, offset, 1, 1
    ),
    "the sign of the sine in the second half: x[c + d/2] cos + x[c] sin": lambda x, length, d, theta, offset: signed(
        x, length, d, theta, offset, -1, -1
    ),
    "the second number of a pair is computed after the first was overwritten": too_early,
    "offset is subtracted: the position of row i is offset + i": lambda x, length, d, theta, offset: {
        "y": rotate(x, angles(length, d, theta, -offset))
    },
    "rows are counted from 1: row 0 has the position offset": lambda x, length, d, theta, offset: {
        "y": rotate(x, angles(length, d, theta, offset + 1))
    },
}
