"""softmax(scale Q K') V."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

HIGH = "right for small scores only: exponentials overflow, so subtract the largest of the row first"
LOW = "right only where a score is near 0 or above: the largest begins at minus infinity, not at 0"
SQUARE = "right only where lq is equal to lk: every query sees all lk keys"


def case(lq, lk, d, about, scale=0.5, factor=1.0, at=0.0, **more):
    draw = random(100 * lq + 10 * lk + d)
    q, k, v = (draw.standard_normal(shape).astype(np.float32) for shape in ((lq, d), (lk, d), (lk, d)))
    if at:  # where the scores lie
        q[:, 0], k[:, 0] = 1, at / scale
    arrays = {"q": np.float32(factor) * q, "k": k, "v": v, "out": Output((lq, d))}
    return Case(about, {**arrays, "lq": lq, "lk": lk, "d": d, "scale": scale}, **more)


def cases():
    yield case(4, 4, 8, "lq = lk = 4, d = 8")
    yield case(1, 1, 3, "one query, one key")
    yield case(5, 3, 7, "lq = 5, lk = 3, d = 7")
    yield case(2, 19, 5, "lq = 2, lk = 19, d = 5", alone=SQUARE)
    yield case(3, 3, 16, "scores of some hundreds", factor=100.0, alone=HIGH)
    yield case(4, 4, 5, "scores of about -200", at=-200.0, alone=LOW)


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


def overflowing(q, k, v, lq, lk, d, scale):
    """In float32, exponentials of the scores as they are."""
    with np.errstate(all="ignore"):
        powers = np.exp(weights(q, k, scale)[1].astype(np.float32))
        return {"out": (powers @ v.astype(np.float32)) / powers.sum(axis=1, keepdims=True)}


MISTAKES = {
    "every key has the same weight: this is the mean of all values": lambda q, k, v, lq, lk, d, scale: {
        "out": np.broadcast_to(v.mean(axis=0), (lq, d))
    },
    "scale is not used": lambda q, k, v, lq, lk, d, scale: reference(q, k, v, lq, lk, d, 1.0),
    "the weights are not divided by the sum of the exponentials": undivided,
    "this is the mean of the rows of K, not of V": lambda q, k, v, lq, lk, d, scale: reference(
        q, k, k, lq, lk, d, scale
    ),
    "the largest score of a row is not subtracted: exponentials overflow, or are all 0": overflowing,
}
