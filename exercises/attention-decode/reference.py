"""One step of attention with a cache."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, State, random

LOW = "right only where a score is near 0 or above: the largest begins at minus infinity, not at 0"
HIGH = "right for small scores only: exponentials overflow, so subtract the largest of all scores first"


def case(length, d, about, scale=0.5, at=0.0, **more):
    draw = random(100 * length + d)
    keys, values = draw.standard_normal((2, length + 1, d)).astype(np.float32)
    keys[length], values[length] = 7.0, -7.0  # nobody has set them
    q, k, v = draw.standard_normal((3, d)).astype(np.float32)
    if at:  # where all scores lie, or all but the first
        q[0], k[0], keys[:length, 0] = 1, at / scale, at / scale
        keys[0, 0] = min(at, 0) / scale
    arrays = {"q": q, "k": k, "v": v, "keys": State(keys), "values": State(values), "out": Output(d)}
    return Case(about, {**arrays, "length": length, "d": d, "scale": scale}, **more)


def cases():
    yield case(4, 8, "length = 4, d = 8")
    yield case(1, 3, "length = 1, d = 3")
    yield case(13, 5, "length = 13, d = 5")
    yield case(5, 6, "scores of about 200", at=200.0, alone=HIGH)
    yield case(5, 6, "scores of about -200", at=-200.0, alone=LOW)
    yield case(0, 4, "length = 0: the first token")


def timed():
    length, d = 1023, 64
    return case(length, d, f"length = {length}, d = {d}", 0.125, flop=4 * (length + 1) * d, bytes=8 * (length + 2) * d)


def grown(cache, row, length):
    cache = cache.copy()
    cache[length] = row
    return cache


def attend(q, keys, values, scale):
    scores = np.float32(scale) * (keys @ q)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum() @ values


def step(q, k, v, keys, values, length, scale, seen):
    keys, values = grown(keys, k, length), grown(values, v, length)
    return {"keys": keys, "values": values, "out": attend(q, keys[:seen], values[:seen], scale)}


def reference(q, k, v, keys, values, length, d, scale):
    return step(q, k, v, keys, values, length, scale, length + 1)


def bound(q, k, v, keys, values, length, d, scale):
    keys, values = grown(keys, k, length), grown(values, v, length)
    scores = np.float32(scale) * (keys @ q)
    off = HALF_ULP * ((d + 3) * scale * (np.abs(keys) @ np.abs(q)) + np.abs(scores - scores.max())).max()
    limit = (2 * off + (length + 13) * HALF_ULP) * attend(q, keys, np.abs(values), scale)
    return {"keys": 0 * keys, "values": 0 * values, "out": limit + 2.0**-120}


def overwritten(q, k, v, keys, values, length, d, scale):
    keys, values = grown(keys, k, max(length - 1, 0)), grown(values, v, length)
    return {"keys": keys, "values": values, "out": attend(q, keys, values, scale)}


def without_itself(q, k, v, keys, values, length, d, scale):
    if not length:
        return {"keys": grown(keys, k, 0), "values": grown(values, v, 0), "out": 0 * v}
    return step(q, k, v, keys, values, length, scale, length)


def before_it_is_there(q, k, v, keys, values, length, d, scale):
    found = reference(q, k, v, keys, values, length, d, scale)
    return found | {"out": attend(q, keys[: length + 1], values[: length + 1], scale)}


def overflowing(q, k, v, keys, values, length, d, scale):
    """In float32, exponentials of the scores as they are."""
    found = reference(q, k, v, keys, values, length, d, scale)
    with np.errstate(all="ignore"):
        powers = np.exp((np.float32(scale) * (found["keys"] @ q)).astype(np.float32))
        return found | {"out": powers @ found["values"].astype(np.float32) / powers.sum()}


MISTAKES = {
    "the new token does not see itself: it attends to rows 0 to length, which are length + 1": without_itself,
    "it attends before the new key and value are in the caches: write them first": before_it_is_there,
    "the result is the new value alone": lambda q, k, v, keys, values, length, d, scale: (
        reference(q, k, v, keys, values, length, d, scale) | {"out": v}
    ),
    "the new token does not see itself: it attends to length + 1 rows": (
        lambda q, k, v, keys, values, length, d, scale: step(q, k, v, keys, values, length, scale, max(length, 1))
    ),
    "the new key overwrites the row before its own": overwritten,
    "scale is not used": lambda q, k, v, keys, values, length, d, scale: step(
        q, k, v, keys, values, length, 1.0, length + 1
    ),
    "the largest score is not subtracted: exponentials overflow, or are all 0": overflowing,
}
