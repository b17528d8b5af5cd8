"""softmax(scale Q K') V."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

SQUARE = "right only where lq is equal to lk: every query sees all lk keys"


def case(lq, lk, d, about, scale=0.5, factor=1.0, **more):
    draw = random(100 * lq + 10 * lk + d)
    q, k, v = (draw.standard_normal(shape).astype(np.float32) for shape in ((lq, d), (lk, d), (lk, d)))
    arrays = {"q": np.float32(factor) * q, "k": k, "v": v, "out": Output((lq, d))}
    return Case(about, {**arrays, "lq": lq, "lk": lk, "d": d, "scale": scale}, **more)


def cases():
    yield case(4, 4, 8, "lq = lk = 4, d = 8")
    yield case(1, 1, 3, "one query, one key")
    yield case(5, 3, 7, "lq = 5, lk = 3, d = 7")
    yield case(2, 19, 5, "lq = 2, lk = 19, d = 5", alone=SQUARE)
    yield case(3, 3, 16, "scores of some hundreds", factor=100.0)


def timed():
    lq, lk, d = 32, 128, 64
    return case(lq, lk, d, f"lq = {lq}, lk = {lk}, d = {d}", 0.125, flop=4 * lq * lk * d, bytes=8 * (lq + lk) * d)


def weights(q, k, scale):
    scores = np.float32(scale) * (q @ k.T)
    return np.exp(scores - scores.max(axis=1, keepdims=True)), scores


def reference(q, k, v, lq, lk, d, scale):
    powers, _ = weights(q, k, scale)
    return {"out": powers / powers.sum(axis=1, keepdims=True) @ v}


def bound(q, k, v, lq, lk, d, scale):
    powers, scores = weights(q, k, scale)
    away = np.abs(scores - scores.max(axis=1, keepdims=True))
    off = HALF_ULP * ((d + 3) * scale * (np.abs(q) @ np.abs(k).T) + away).max(axis=1, keepdims=True)
    share = powers / powers.sum(axis=1, keepdims=True)
    return {"out": (2 * off + (lk + 12) * HALF_ULP) * (share @ np.abs(v)) + 2.0**-120}


def undivided(q, k, v, lq, lk, d, scale):
    return {"out": weights(q, k, scale)[0] @ v}


MISTAKES = {
    "every key has the same weight: this is the mean of all values": lambda q, k, v, lq, lk, d, scale: {
        "out": np.broadcast_to(v.mean(axis=0), (lq, d))
    },
    "scale is not used": lambda q, k, v, lq, lk, d, scale: reference(q, k, v, lq, lk, d, 1.0),
    "the weights are not divided by the sum of the exponentials": undivided,
    "this is the mean of the rows of K, not of V": lambda q, k, v, lq, lk, d, scale: reference(
        q, k, k, lq, lk, d, scale
    ),
}
