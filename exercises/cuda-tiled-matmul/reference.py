"""c = a b."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(M, N, K, **more):
    numbers = random(M * 10000 + N * 100 + K)
    a, b = (numbers.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
    arguments = {"a": a, "b": b, "c": Output((M, N)), "M": M, "N": N, "K": K}
    return Case(f"M = {M}, N = {N}, K = {K}", arguments, **more)


def cases():
    for M, N, K in ((17, 18, 20), (20, 31, 7), (48, 32, 32)):
        yield case(M, N, K)


def timed():
    n = 4096
    return case(n, n, n, flop=2.0 * n**3, bytes=12.0 * n * n)


def reference(a, b, M, N, K):
    return {"c": a @ b}


# Each product and each of the K additions rounds once, in whichever order they are made.
def bound(a, b, M, N, K):
    return {"c": HALF_ULP * (K + 1) * (np.abs(a) @ np.abs(b)) + (K + 1) * TINY}


MISTAKES = {
    "a is read as if it were transposed: its element in row i, column k is a[i * K + k]": lambda a, b, M, N, K: {
        "c": a.reshape(K, M).T @ b
    },
    "b is read as if it were transposed: its element in row k, column j is b[k * N + j]": lambda a, b, M, N, K: {
        "c": a @ b.reshape(N, K).T
    },
    "the last K % 16 products are left out": lambda a, b, M, N, K: {"c": a[:, : K // 16 * 16] @ b[: K // 16 * 16]},
}
