"""y = A x, A in blocks of 32 numbers of 8 bits."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(m, n, about, **more):
    draw = random(10 * m + n)
    q = draw.integers(-127, 128, (m, n)).astype(np.int8)
    scales = draw.uniform(0.001, 0.1, (m, n // 32)).astype(np.float32)
    arrays = {"q": q, "scales": scales, "x": draw.standard_normal(n).astype(np.float32), "y": Output(m)}
    return Case(about, {**arrays, "m": m, "n": n}, **more)


def cases():
    yield case(3, 32, "m = 3, n = 32")
    yield case(4, 96, "m = 4, n = 96")
    yield case(1, 64, "m = 1, n = 64")


def timed():
    m, n = 512, 1024
    return case(m, n, f"m = {m}, n = {n}", flop=2 * m * n, bytes=m * n * 36 / 32 + 4 * (n + m))


def product(q, scales, x):
    return {"y": (q * np.repeat(scales, 32, axis=1)) @ x}


def reference(q, scales, x, m, n):
    return product(q, scales, x)


def bound(q, scales, x, m, n):
    return {"y": (n + 3) * HALF_ULP * product(np.abs(q.astype(float)), scales, np.abs(x))["y"] + TINY}


def of_blocks(q, scales, x):
    """The sum of each block of each row, without its scale."""
    return (q.astype(float) * x).reshape(*scales.shape, 32).sum(axis=2)


MISTAKES = {
    "the scales are not used": lambda q, scales, x, m, n: {"y": q @ x},
    "one scale for a whole row is used: each block has its own": lambda q, scales, x, m, n: product(
        q, np.broadcast_to(scales[:, :1], scales.shape), x
    ),
    "every row uses the scales of row 0": lambda q, scales, x, m, n: product(
        q, np.broadcast_to(scales[:1], scales.shape), x
    ),
    "the numbers are taken without a sign": lambda q, scales, x, m, n: product(q.view(np.uint8), scales, x),
    "every block is multiplied by the first 32 numbers of x": lambda q, scales, x, m, n: product(
        q, scales, np.tile(x[:32], n // 32)
    ),
    "the last block of each row is left out": lambda q, scales, x, m, n: product(
        q[:, : n - 32], scales[:, :-1], x[: n - 32]
    ),
    "the sum of a block goes on into the next block: it begins at 0 in each": lambda q, scales, x, m, n: {
        "y": (scales * np.cumsum(of_blocks(q, scales, x), axis=1)).sum(axis=1)
    },
    "only the last block of a row counts: add to the row's sum": lambda q, scales, x, m, n: {
        "y": (scales * of_blocks(q, scales, x))[:, -1]
    },
    "every row uses the numbers of row 0 of q": lambda q, scales, x, m, n: product(
        np.broadcast_to(q[:1], q.shape), scales, x
    ),
    "each scale is used twice: once for a block is enough": lambda q, scales, x, m, n: product(q, scales**2, x),
    "half of each block is left out: it has 32 numbers": lambda q, scales, x, m, n: {
        "y": ((q.astype(float) * x).reshape(*scales.shape, 32)[:, :, :16].sum(axis=2) * scales).sum(axis=1)
    },
}
