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


def tiles(a, b, M, N, K):
    """a and b by tiles of 16, filled with zeros: [down, row, along K, k] and [along K, k, across, column]."""
    up = [-size % 16 for size in (M, N, K)]
    a, b = np.pad(a, ((0, up[0]), (0, up[2]))), np.pad(b, ((0, up[2]), (0, up[1])))
    return a.reshape(len(a) // 16, 16, -1, 16), b.reshape(len(b) // 16, 16, -1, 16)


def turned_b(a, b, M, N, K):
    ta, tb = tiles(a, b, M, N, K)
    return {"c": np.einsum("IyTk,TxJk->IyJx", ta, tb).reshape(ta.shape[0] * 16, -1)[:M, :N]}


def turned_a(a, b, M, N, K):
    ta, tb = tiles(a, b, M, N, K)
    return {"c": np.einsum("IkTy,TkJx->IyJx", ta, tb).reshape(ta.shape[0] * 16, -1)[:M, :N]}


def rows_of_columns(a, b, M, N, K):
    ta, tb = tiles(a, b, M, N, K)
    c = np.einsum("IxTk,TkJx->IJx", ta, tb)
    return {"c": np.repeat(c[:, None], 16, axis=1).reshape(ta.shape[0] * 16, -1)[:M, :N]}


def first_tile_of_a(a, b, M, N, K):
    ta, tb = tiles(a, b, M, N, K)
    return {"c": np.einsum("Iyk,TkJx->IyJx", ta[:, :, 0], tb).reshape(ta.shape[0] * 16, -1)[:M, :N]}


MISTAKES = {
    "the tile of b is read along its row: step i needs its row i, tb[i][x]": turned_b,
    "the tile of a is read along its column: step i needs its column i, ta[y][i]": turned_a,
    "the row of the tile of a is threadIdx.x: the thread's row is y, ta[y][i]": rows_of_columns,
    "the tile of a is the first one in each step: its columns begin at k": first_tile_of_a,
    "a is read as if it were transposed: its element in row i, column k is a[i * K + k]": lambda a, b, M, N, K: {
        "c": a.reshape(K, M).T @ b
    },
    "b is read as if it were transposed: its element in row k, column j is b[k * N + j]": lambda a, b, M, N, K: {
        "c": a @ b.reshape(N, K).T
    },
    "the last K % 16 products are left out": lambda a, b, M, N, K: {"c": a[:, : K // 16 * 16] @ b[: K // 16 * 16]},
}
