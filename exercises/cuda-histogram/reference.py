"""counts[v] is how often the value v is in x."""

import numpy as np

from kernelworks.learn.case import Case, Output, random


def case(n, most=64, **more):
    x = random(n).integers(0, most, n).astype(np.int32)
    about = f"n = {n}" + ("" if most == 64 else f", values below {most}")
    return Case(about, {"x": x, "counts": Output(64, "int32"), "n": n}, **more)


def cases():
    yield case(1000)
    yield case(5000)
    yield case(130)
    yield case(700, most=3)


def timed():
    n = 1 << 26
    return case(n, bytes=4 * n)


def reference(x, n):
    return {"counts": np.bincount(x, minlength=64)}


def bound(x, n):
    return {"counts": np.zeros(64)}


def by_blocks(x, n):
    """Three blocks, of which each goes on by its own 128 threads."""
    return {"counts": sum(np.bincount(x[begin:], minlength=64) for begin in (0, 128, 256))}


MISTAKES = {
    "only the first 384 elements are counted, one for each thread of 3 blocks: a loop goes on": lambda x, n: {
        "counts": np.bincount(x[:384], minlength=64)
    },
    "elements are counted by several blocks: a thread goes on by the threads of the whole grid": by_blocks,
}
