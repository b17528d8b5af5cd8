"""y = silu(first half) * second half."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random


def case(x, about, **more):
    rows, n = x.shape[0], x.shape[1] // 2
    arrays = {"x": x.astype(np.float32), "y": Output((rows, n))}
    return Case(about, {**arrays, "rows": rows, "n": n}, **more)


def cases():
    for rows, n in ((4, 6), (1, 1), (3, 13)):
        yield case(random(n).standard_normal((rows, 2 * n)), f"{rows} rows, n = {n}")
    yield case(np.array([[-100.0, 100.0, 2.0, 3.0], [0.0, -90.0, 1e30, 1.0]]), "gates from -100 to 100")
    wild = random(5).standard_normal((3, 8))
    wild[1, 2] = np.nan
    yield case(wild, "a NaN in row 1")


def timed():
    rows, n = 64, 512
    x = random(1).standard_normal((rows, 2 * n))
    return case(x, f"{rows} rows, n = {n}", flop=20 * rows * n, bytes=12 * rows * n)


def silu(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def reference(x, rows, n):
    return {"y": silu(x[:, :n]) * x[:, n:]}


def bound(x, rows, n):
    return {"y": 10 * HALF_ULP * np.abs(reference(x, rows, n)["y"]) + 2.0**-120 * (1 + np.abs(x[:, n:]))}


def overlapping(x, rows, n):
    flat = x.reshape(-1)
    return {"y": np.stack([silu(flat[i * n : i * n + n]) * flat[i * n + n : i * n + 2 * n] for i in range(rows)])}


MISTAKES = {
    "the values are left out": lambda x, rows, n: {"y": silu(x[:, :n])},
    "the halves are mixed up: gates come first": lambda x, rows, n: {"y": x[:, :n] * silu(x[:, n:])},
    "gate and value are taken as pairs that lie side by side, not as halves": lambda x, rows, n: {
        "y": silu(x[:, ::2]) * x[:, 1::2]
    },
    "rows of x begin 2 n apart, not n": overlapping,
    "n is added to a number: value j is gate[n + j]": lambda x, rows, n: {"y": silu(x[:, :n]) * x[:, :n] + n},
    "the gate is used without SiLU": lambda x, rows, n: {"y": x[:, :n] * x[:, n:]},
    "the gate is a sigmoid in the place of SiLU": lambda x, rows, n: {"y": 1 / (1 + np.exp(-x[:, :n])) * x[:, n:]},
}
