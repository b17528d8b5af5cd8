"""y = x / (1 - p) where tl.rand(seed, place) >= p, else 0."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

BLOCK, WORD = 256, np.uint64(0xFFFFFFFF)
BY_ZERO = "a NaN or an infinity is dropped by a product with 0, which is NaN: choose by tl.where"


AS_LARGE = "fails where a number is exactly p: an element is kept if it is p or more, >= and not >"


def case(n, p, seed, wild=False, about="", **more):
    x = random(n).standard_normal(n).astype(np.float32)
    if wild:
        x[::3], x[1::3] = np.inf, np.nan
    return Case(about or f"n = {n}, p = {p}, seed = {seed}", {"x": x, "y": Output(n), "p": p, "seed": seed}, **more)


def cases():
    yield case(256, 0.5, 42)
    yield case(1000, 0.25, 7)
    yield case(700, 0.9, 123456)
    yield case(300, 0.1, 1)
    drawn = float(uniform(np.arange(300), 1)[5])
    yield case(300, drawn, 1, about="p = tl.rand(seed, 5)", alone=AS_LARGE)
    yield case(256, 0.5, 3, wild=True, about="infinities and NaN", alone=BY_ZERO)


def timed():
    n = 1 << 26
    return case(n, 0.1, 42, flop=50.0 * n, bytes=8.0 * n)


def first_word(place, seed):
    """Of Philox4x32-10 (Salmon and others, 2011) at the counter (place, 0, 0, 0) under the key (seed, 0)."""
    c = [place.astype(np.uint64), *(np.zeros(len(place), np.uint64) for _ in range(3))]
    key = [np.uint64(seed) & WORD, np.uint64(seed) >> np.uint64(32)]
    for _ in range(10):
        one, two = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(two >> np.uint64(32)) ^ c[1] ^ key[0], two & WORD, (one >> np.uint64(32)) ^ c[3] ^ key[1], one & WORD]
        key = [(key[0] + np.uint64(0x9E3779B9)) & WORD, (key[1] + np.uint64(0xBB67AE85)) & WORD]
    return c[0]


def uniform(place, seed):
    """The number of tl.rand: the upper 31 bits of a word, its sign folded, in float32."""
    word = first_word(place, seed).astype(np.uint32).view(np.int32)
    folded = np.where(word < 0, -word - 1, word).astype(np.float32)
    return folded * np.float32(4.6566127342e-10)


def dropped(x, keep, p):
    return {"y": np.where(keep, x / (1 - np.float64(np.float32(p))), 0.0)}


def kept(x, p, seed):
    return uniform(np.arange(len(x)), seed) >= np.float32(p)


def reference(x, p, seed):
    return dropped(x, kept(x, p, seed), p)


# 1 - p rounds once, a GPU's division is within 2 units in the last place.
def bound(x, p, seed):
    size = np.nan_to_num(np.abs(reference(x, p, seed)["y"]), nan=0.0, posinf=0.0)
    return {"y": 6 * HALF_ULP * size + TINY}


def same_lanes(x, p, seed):
    return dropped(x, uniform(np.arange(len(x)) % BLOCK, seed) >= np.float32(p), p)


MISTAKES = {
    "y is x, as in the starting file": lambda x, p, seed: {"y": x},
    "every block drops the same lanes: offsets are places in the whole array": same_lanes,
    "what is to be kept is dropped, and the other way round": lambda x, p, seed: dropped(x, ~kept(x, p, seed), p),
    "what is kept is not divided by 1 - p": lambda x, p, seed: {"y": np.where(kept(x, p, seed), x, 0.0)},
    "what is kept is divided by p, not by 1 - p": lambda x, p, seed: {"y": np.where(kept(x, p, seed), x / p, 0.0)},
    "what is kept is multiplied by 1 - p, not divided": lambda x, p, seed: {
        "y": np.where(kept(x, p, seed), x * (1 - p), 0.0)
    },
    "p is taken for the share that is kept: it is the share that is dropped": lambda x, p, seed: dropped(
        x, uniform(np.arange(len(x)), seed) >= np.float32(1 - p), p
    ),
    "the seed is not used": lambda x, p, seed: reference(x, p, 0),
}
