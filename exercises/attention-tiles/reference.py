"""softmax(scale Q K') V, the keys in tiles."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

TILE = 16
LOW = "right only where a score is near 0 or above: the largest begins at minus infinity, not at 0"
FALL = "right only where scores do not fall from tile to tile: the largest is that of all keys so far, not of one tile"


def case(lq, lk, d, about, scale=0.5, grow=0.0, steps=(), **more):
    draw = random(100 * lq + 10 * lk + d)
    q, k, v = (draw.standard_normal(shape).astype(np.float32) for shape in ((lq, d), (lk, d), (lk, d)))
    if grow:  # scores that rise, or fall, from key to key
        q, k = np.abs(q), np.linspace(0.1, grow, lk, dtype=np.float32)[:: 1 if grow > 0 else -1, None] + 0 * k
        k = np.abs(k)
    if steps:  # what the scores of each tile lie at
        q[:, 0], k[:, 0] = 1, np.repeat(np.float32(steps), TILE) / np.float32(scale)
    arrays = {"q": q, "k": k, "v": v, "out": Output((lq, d))}
    return Case(about, {**arrays, "lq": lq, "lk": lk, "d": d, "scale": scale}, **more)


def cases():
    yield case(2, 16, 8, "lk = 16, one tile")
    yield case(3, 48, 4, "lk = 48, three tiles")
    yield case(2, 48, 4, "lk = 48, scores that rise", grow=4.0)
    yield case(2, 48, 4, "lk = 48, scores that fall", grow=-4.0)
    yield case(2, 48, 4, "lk = 48, scores that fall by 200 from tile to tile", steps=(400, 200, 0), alone=FALL)
    yield case(2, 48, 4, "lk = 48, scores of about -200", steps=(-200, -200, -200), alone=LOW)
    yield case(2, 37, 5, "lk = 37: two tiles and five keys")
    yield case(1, 3, 5, "lk = 3: less than a tile")


def timed():
    lq, lk, d = 32, 512, 64
    return case(lq, lk, d, f"lq = {lq}, lk = {lk}, d = {d}", 0.125, flop=4 * lq * lk * d, bytes=8 * (lq + lk) * d)


def scores_of(q, k, scale):
    return np.float32(scale) * (q @ k.T)


def reference(q, k, v, lq, lk, d, scale):
    scores = scores_of(q, k, scale)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return {"out": powers / powers.sum(axis=1, keepdims=True) @ v}


def bound(q, k, v, lq, lk, d, scale):
    scores = scores_of(q, k, scale)
    away = np.abs(scores - scores.max(axis=1, keepdims=True))
    off = HALF_ULP * ((d + 3) * scale * (np.abs(q) @ np.abs(k).T) + away).max(axis=1, keepdims=True)
    roundings = lk + 12 + 4 * (lk // TILE + 1)
    return {"out": (2 * off + roundings * HALF_ULP) * reference(q, k, np.abs(v), lq, lk, d, scale)["out"] + 2.0**-120}


def online(q, k, v, scale, *, values=True, total=True, divided=False, each=False):
    """The algorithm with a step left out."""
    scores, found = scores_of(q, k, scale), np.zeros((len(q), v.shape[1]))
    for i, row in enumerate(scores):
        largest, seen, out = -np.inf, 0.0, np.zeros(v.shape[1])
        for begin in range(0, len(k), TILE):
            part = row[begin : begin + TILE]
            larger = max(largest, part.max())
            shrink = np.exp(largest - larger)
            seen, out = seen * (shrink if total else 1), out * (shrink if values else 1)
            largest, powers = larger, np.exp(part - larger)
            for at, (power, value) in enumerate(zip(powers, v[begin : begin + TILE], strict=True)):
                again = shrink if each and at else 1
                seen, out = again * seen + power, again * out + power * value
            out = out / seen if divided else out
        found[i] = out if divided else out / seen
    return {"out": found}


def of_first_tile(q, k, v, lq, lk, d, scale):
    return reference(q, k, v[np.arange(lk) % TILE], lq, lk, d, scale)


def undivided(q, k, v, lq, lk, d, scale):
    scores = scores_of(q, k, scale)
    return {"out": np.exp(scores - scores.max(axis=1, keepdims=True)) @ v}


def whole_tiles(q, k, v, lq, lk, d, scale):
    end = lk // TILE * TILE or lk
    return reference(q, k[:end], v[:end], lq, lk, d, scale)


MISTAKES = {
    "nothing is rescaled when a tile brings a larger score": lambda q, k, v, lq, lk, d, scale: online(
        q, k, v, scale, values=False, total=False
    ),
    "the weighted values are not rescaled when a tile brings a larger score": lambda q, k, v, lq, lk, d, scale: online(
        q, k, v, scale, values=False
    ),
    "the sum is not rescaled when a tile brings a larger score": lambda q, k, v, lq, lk, d, scale: online(
        q, k, v, scale, total=False
    ),
    "keys that fill no whole tile are left out": whole_tiles,
    "the values are divided after each tile, not once at the end": lambda q, k, v, lq, lk, d, scale: online(
        q, k, v, scale, divided=True
    ),
    "scale is not used": lambda q, k, v, lq, lk, d, scale: reference(q, k, v, lq, lk, d, 1.0),
    "the values are not divided by the sum of the exponentials at the end": undivided,
    "every tile takes the values of the first 16 keys: key j of all has row j of V": of_first_tile,
    "every row of out is that of query 0": lambda q, k, v, lq, lk, d, scale: reference(
        np.broadcast_to(q[:1], q.shape), k, v, lq, lk, d, scale
    ),
    "what was summed is rescaled for each key: once for each tile": lambda q, k, v, lq, lk, d, scale: online(
        q, k, v, scale, each=True
    ),
    "the last key is left out": lambda q, k, v, lq, lk, d, scale: reference(
        q, k[: max(lk - 1, 1)], v[: max(lk - 1, 1)], lq, lk, d, scale
    ),
}
