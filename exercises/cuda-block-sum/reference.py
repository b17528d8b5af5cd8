"""y[b] is the sum of the b-th 256 elements of x."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x = random(n).standard_normal(n).astype(np.float32)
    blocks = (n + 255) // 256
    return Case(f"n = {n}", {"x": x, "y": Output(blocks), "n": n, "blocks": blocks}, **more)


def cases():
    for n in (256, 1300, 513):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=n, bytes=4 * n)


def parts(x, blocks):
    return np.pad(x, (0, blocks * 256 - len(x))).reshape(blocks, 256)


def reference(x, n, blocks):
    return {"y": parts(x, blocks).sum(axis=1)}


# 255 additions, in whichever order.
def bound(x, n, blocks):
    return {"y": 255 * HALF_ULP * np.abs(parts(x, blocks)).sum(axis=1) + TINY}


MISTAKES = {
    "every second element is left out: the last step of the loop is missing": lambda x, n, blocks: {
        "y": parts(x, blocks)[:, ::2].sum(axis=1)
    },
    "this is the first element of each block": lambda x, n, blocks: {"y": parts(x, blocks)[:, 0]},
}
