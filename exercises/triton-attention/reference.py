"""softmax(scale q k') v of each head, the keys in tiles."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

KEYS = 32


def case(h, lq, lk, d, about="", scale=0.25, shift=0.0, grow=0.0, fall=0.0, **more):
    draw = random(1000 * lq + 10 * lk + d)
    q, k, v = (draw.standard_normal((h, n, d)).astype(np.float32) for n in (lq, lk, lk))
    if shift:
        q, k = np.abs(q) + 1, shift * (np.abs(k) / 4 + 1)
    if grow:  # scores that rise from key to key
        q, k = np.abs(q), np.abs(k) * np.linspace(0, grow, lk, dtype=np.float32)[:, None]
    if fall:  # every later tile is far below the first
        q, k = np.abs(q) + 1, np.where(np.arange(lk)[:, None] < KEYS, fall, -fall) * (np.abs(k) / 4 + 1)
    arrays = {"q": q, "k": k.astype(np.float32), "v": v, "out": Output((h, lq, d)), "scale": scale}
    return Case(about or f"{h} heads, {lq} queries, {lk} keys, D = {d}", arrays, **more)


ABOVE = "fails where later tiles have smaller scores: the largest is that of all tiles so far"
BELOW = "fails where all scores are far below 0: the largest must begin at -inf"


def cases():
    yield case(1, 16, 32, 16)
    yield case(2, 16, 64, 16)
    yield case(2, 20, 96, 16, "scores that rise", grow=4.0)
    yield case(2, 19, 45, 32)
    yield case(1, 3, 5, 16)
    yield case(1, 16, 64, 16, "scores that fall", fall=8.0, alone=ABOVE)
    yield case(1, 16, 40, 16, "all scores far below 0", shift=-40.0, alone=BELOW)


def timed():
    h, n, d = 32, 4096, 64
    return case(h, n, n, d, scale=0.125, flop=4.0 * h * n * n * d, bytes=16.0 * h * n * d)


def scores_of(q, k, scale):
    return np.float32(scale) * (q @ k.transpose(0, 2, 1))


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def reference(q, k, v, scale):
    return {"out": softmax(scores_of(q, k, scale)) @ v}


# A score is off by D + 3 roundings of the sum of its terms' magnitudes, its exponent by a rounding of its distance from
# the largest: as much relatively is an exponential off, in the sum and in that of values. Each of both sums adds a
# rounding for each key, and four for each tile that shrinks what came before.
def bound(q, k, v, scale):
    scores = scores_of(q, k, scale)
    away = np.abs(scores - scores.max(axis=-1, keepdims=True))
    terms = scale * (np.abs(q) @ np.abs(k).transpose(0, 2, 1))
    weights = softmax(scores)
    off = HALF_ULP * ((q.shape[2] + 3) * terms + away + 6)
    tiles = -(-k.shape[1] // KEYS)
    sums = (k.shape[1] + 4 * tiles + 8) * HALF_ULP
    size = np.abs(v)
    total = (weights * off).sum(axis=-1, keepdims=True)
    return {"out": 1.01 * ((weights * (off + 2 * sums)) @ size + total * (weights @ size)) + 2.0**-120}


def online(q, k, v, scale, values=True, sums=True, divided=True):
    """The algorithm with a step left out."""
    found = np.zeros((*q.shape[:2], v.shape[2]))
    largest = np.full((*q.shape[:2], 1), -np.inf)
    total, gathered = np.zeros_like(largest), np.zeros_like(found)
    for start in range(0, k.shape[1], KEYS):
        scores = scores_of(q, k[:, start : start + KEYS], scale)
        larger = np.maximum(largest, scores.max(axis=-1, keepdims=True))
        shrink, powers = np.exp(largest - larger), np.exp(scores - larger)
        total = total * (shrink if sums else 1) + powers.sum(axis=-1, keepdims=True)
        gathered = gathered * (shrink if values else 1) + powers @ v[:, start : start + KEYS]
        largest = larger
    return {"out": gathered / total if divided else gathered}


def keys_of_zero(q, k, v, scale):
    more = ((0, 0), (0, -k.shape[1] % KEYS), (0, 0))
    return {"out": softmax(scores_of(q, np.pad(k, more), scale)) @ np.pad(v, more)}


def first_values(q, k, v, scale):
    place = np.arange(k.shape[1]) % KEYS
    return {"out": softmax(scores_of(q, k, scale)) @ v[:, place]}


MISTAKES = {
    "out is 0, as in the starting file": lambda q, k, v, scale: {"out": 0 * q},
    "the values so far are not shrunk when a larger score comes": lambda q, k, v, scale: online(
        q, k, v, scale, values=False
    ),
    "the sum so far is not shrunk when a larger score comes": lambda q, k, v, scale: online(q, k, v, scale, sums=False),
    "the values are not divided by the sum": lambda q, k, v, scale: online(q, k, v, scale, divided=False),
    "keys beyond the last one count with score 0: theirs is -inf": keys_of_zero,
    "scale is not used": lambda q, k, v, scale: reference(q, k, v, 1.0),
    "every tile of keys takes the first values again": first_values,
}
