"""y[0] is the dot product of x and z."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x, z = random(n).standard_normal((2, n)).astype(np.float32)
    return Case(f"n = {n}", {"x": x, "z": z, "y": Output(1), "n": n}, **more)


def cases():
    for n in (1000, 5000, 100, 1):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=2 * n, bytes=8 * n)


def reference(x, z, n):
    return {"y": np.array([x @ z])}


# A rounding for each product and each addition, those of the threads that have nothing too.
def bound(x, z, n):
    return {"y": np.array([(n + 12) * (HALF_ULP * (np.abs(x) @ np.abs(z)) + TINY)])}


def first_warps(x, z, n):
    return {"y": np.array([(x * z)[np.arange(n) % 128 < 32].sum()])}


def by_blocks(x, z, n):
    return {"y": np.array([sum((x * z)[begin:].sum() for begin in (0, 128, 256))])}


MISTAKES = {
    "only the first 384 products are added, one for each thread of 3 blocks: a loop goes on": lambda x, z, n: {
        "y": np.array([x[:384] @ z[:384]])
    },
    "products are added by several blocks: a thread goes on by the threads of the whole grid": by_blocks,
    "128 times the dot product: every thread of a block adds the block's sum": lambda x, z, n: {
        "y": np.array([128 * (x @ z)])
    },
    "only the first warp of each block counts": first_warps,
    "this is x . x: z is not read": lambda x, z, n: {"y": np.array([x @ x])},
}
