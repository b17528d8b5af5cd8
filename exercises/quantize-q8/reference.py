"""Blocks of 32 in 8 bits with a scale."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random

BLOCK = 32
MIDDLE = 1e-3


def case(x, about, **more):
    x = np.asarray(x, np.float32)
    outputs = {"q": Output(x.size, "int8"), "scales": Output(-(-x.size // BLOCK))}
    return Case(about, {"x": x, **outputs, "n": x.size}, **more)


def cases():
    yield case(random(1).standard_normal(32), "n = 32, one block")
    falling = random(2).standard_normal(96) * np.repeat([9.0, 1.0, 0.1], 32)
    yield case(falling, "n = 96, blocks of falling size")
    yield case(random(3).standard_normal(45), "n = 45: a block and 13 numbers")
    yield case(-np.abs(random(4).standard_normal(32)) - 0.1, "negative numbers only")
    zeros = random(5).standard_normal(96)
    zeros[32:64] = 0
    yield case(zeros, "a block of zeros")


def timed():
    n = 1 << 14
    return case(random(1).standard_normal(n), f"n = {n}", flop=4 * n, bytes=5 * n)


def blocks(x):
    return np.array([np.abs(x[at : at + BLOCK]).max() for at in range(0, x.size, BLOCK)])


def quantised(x, largest, levels=127, rounded=np.rint):
    scales = largest / levels
    each = np.repeat(scales, BLOCK)[: x.size]
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"q": np.where(each > 0, rounded(x / each), 0), "scales": scales}, each


def reference(x, n):
    return quantised(x, blocks(x))[0]


def bound(x, n):
    _, each = quantised(x, blocks(x))
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(each > 0, x / each, 0)
    near = np.abs(np.abs(place - np.floor(place)) - 0.5) < MIDDLE
    return {"q": near.astype(float), "scales": 2 * HALF_ULP * blocks(x) / 127 + TINY}


def cut_off(x, n):
    """In float32, as the function does: 127 may come out as 126.99999."""
    x, largest = x.astype(np.float32), blocks(x).astype(np.float32)
    return quantised(x, largest, np.float32(127), np.trunc)[0]


MISTAKES = {
    "the largest is that of positive numbers, and every q is 0": lambda x, n: {
        "q": 0 * x,
        "scales": np.array([max(x[at : at + BLOCK].max(), 0) for at in range(0, n, BLOCK)]) / 127,
    },
    "digits are cut off, not rounded to the nearest": cut_off,
    "the scale is a part of 128, which does not fit in 8 bits: it is 127": lambda x, n: quantised(x, blocks(x), 128)[0],
    "the largest value is kept from the blocks before": lambda x, n: quantised(x, np.maximum.accumulate(blocks(x)))[0],
    "negative numbers are rounded the wrong way: v + 0.5 with its digits cut off is right above 0 only": lambda x, n: (
        quantised(x.astype(np.float32), blocks(x).astype(np.float32), np.float32(127), lambda v: np.trunc(v + 0.5))[0]
    ),
    "digits are rounded down, not to the nearest": lambda x, n: quantised(
        x.astype(np.float32), blocks(x).astype(np.float32), np.float32(127), np.floor
    )[0],
    "q is x times scale: it is x / scale": lambda x, n: {
        "q": np.rint(x * np.repeat(blocks(x) / 127, BLOCK)[:n]),
        "scales": blocks(x) / 127,
    },
}
