"""A float sum in sixteen lanes, in one order."""

import numpy as np

from kernelworks.learn.case import Case, Output, random

LANES = 16


def case(n, level, about, **more):
    # Large numbers that cancel: what is left is small beside every rounding, so another order has other bits.
    draw = random(n)
    x, half = 1000 * draw.standard_normal(n), n // 2
    x[half : 2 * half] = draw.standard_normal(half) - x[:half]
    x = x.astype(np.float32)
    return Case(about, {"x": x, "result": Output(1), "n": n, "level": level}, **more)


def cases():
    for level in (0, 1, 2):
        for n in (160, 7, 45, 1001):
            yield case(n, level, f"n = {n}, level {level}")
    yield case(0, 1, "n = 0: the result is 0")


def timed():
    n = 1 << 12
    return case(n, 2, f"n = {n}, level 2", flop=n, bytes=4 * n)


def in_lanes(x, lanes=LANES, *, folded=True, whole=False, left=True):
    """In float32, addition by addition."""
    x = x.astype(np.float32)
    end = x.size // lanes * lanes
    sums = np.zeros(lanes, np.float32)
    for at in range(0, x.size if left and not whole else end, lanes):
        part = x[at : at + lanes]
        sums[: part.size] += part
    for value in x[end:] if whole else ():
        sums[0] += value
    while folded and sums.size > 1:
        sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
    total = np.float32(0)
    for value in sums:
        total += value
    return {"result": np.array([total], np.float64)}


def reference(x, n, level):
    return in_lanes(x)


def bound(x, n, level):
    return {"result": np.zeros(1)}


def folded_by_neighbours(sums):
    while sums.size > 1:
        sums = sums[::2] + sums[1::2]
    return {"result": np.array([sums[0]], np.float64)}


def by_neighbours(x, n, level):
    x = np.concatenate((x, np.zeros(-n % LANES))).astype(np.float32).reshape(-1, LANES)
    sums = np.zeros(LANES, np.float32)
    for part in x:
        sums += part
    return folded_by_neighbours(sums)


def in_double(x, n, level):
    sums = np.concatenate((x, np.zeros(-n % LANES))).reshape(-1, LANES).sum(axis=0)
    return {"result": np.array([sums.sum()]).astype(np.float32).astype(np.float64)}


OTHER_ORDER = "this is another order of the additions: the bits must be the same at each level"


def one_of_the_orders(x, n, level):
    """What the nearest of the other orders gives where it is not the contract's."""
    return in_lanes(x, folded=False)


MISTAKES = {
    "elements at the end, which fill no whole block, are left out": lambda x, n, level: in_lanes(x, left=False),
    f"{OTHER_ORDER} (the lanes are not folded)": one_of_the_orders,
    f"{OTHER_ORDER} (what is left is all in lane 0)": lambda x, n, level: in_lanes(x, whole=True),
    "the sums are kept in double: the contract is the float sum, to the bit": in_double,
    f"{OTHER_ORDER} (neighbours are added first: lane 0 takes lane 8)": by_neighbours,
    f"{OTHER_ORDER} (eight lanes at level 1)": lambda x, n, level: in_lanes(x, 8 if level == 1 else LANES),
}
