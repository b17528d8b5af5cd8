"""y[i] = x[i - 1] + x[i] + x[i + 1], with 0 outside of x."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(n, **more):
    x = random(n).standard_normal(n).astype(np.float32)
    return Case(f"n = {n}", {"x": x, "y": Output(n), "n": n}, **more)


def cases():
    for n in (300, 128, 1, 129, 2048):
        yield case(n)


def timed():
    n = 1 << 26
    return case(n, flop=2 * n, bytes=8 * n)


def shifted(x):
    return np.concatenate([[0.0], x[:-1]]), np.concatenate([x[1:], [0.0]])


def reference(x, n):
    before, behind = shifted(x)
    return {"y": before + x + behind}


# Two additions, in whichever order.
def bound(x, n):
    before, behind = shifted(np.abs(x))
    return {"y": 2 * HALF_ULP * (before + np.abs(x) + behind) + TINY}


def alone(x, n):
    parts = [reference(x[begin : begin + 128], n)["y"] for begin in range(0, n, 128)]
    return {"y": np.concatenate(parts)}


def turned(x, n):
    before, behind = shifted(x)
    ends = np.arange(len(x)) % 128 == 127
    ends[-1:] = False  # nothing is behind
    return {"y": before + x + np.where(ends, before, behind)}


MISTAKES = {
    "each block of 128 stands alone: the neighbours of its ends are missing": alone,
    "the last element of a block of 128 takes its neighbour before for the one behind": turned,
}
