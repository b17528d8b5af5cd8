"""y is the sum of each row of x."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(rows, columns, **more):
    x = random(rows * 1000 + columns).standard_normal((rows, columns)).astype(np.float32)
    arguments = {"x": x, "y": Output(rows), "rows": rows, "columns": columns}
    return Case(f"{rows} rows, {columns} columns", arguments, **more)


def cases():
    for rows, columns in ((8, 64), (37, 100), (3, 7), (1, 33)):
        yield case(rows, columns)


def timed():
    rows, columns = 65536, 1024
    return case(rows, columns, flop=rows * columns, bytes=4.0 * rows * (columns + 1))


def reference(x, rows, columns):
    return {"y": x.sum(axis=1)}


# One addition for each element and five in the tree, in whichever order.
def bound(x, rows, columns):
    return {"y": (columns + 5) * HALF_ULP * np.abs(x).sum(axis=1) + TINY}


def of_lanes(x, lanes):
    return x[:, np.isin(np.arange(x.shape[1]) % 32, lanes)].sum(axis=1)


def last_lane(times):
    return lambda x, rows, columns: {"y": times * of_lanes(x, [31])}


def first_lane(x, rows, columns):
    return {"y": 32 * of_lanes(x, [0])}


def every_second_lane(x, rows, columns):
    return {"y": of_lanes(x, range(0, 32, 2))}


def twice(x, rows, columns):
    return {"y": 2 * x.sum(axis=1)}


def from_lane_on(x, rows, columns):
    return {"y": (x * np.minimum(np.arange(columns) + 1, 32)).sum(axis=1)}


MISTAKES = {
    "this is the sum of lane 31 alone: = throws away what the lane had, += keeps it": last_lane(1),
    "the last step is missing, d = 1: lane 0 has the sums of every second lane": every_second_lane,
    "twice the sum: no lane is 32 further up, so a step of 32 gives each lane its own number back": twice,
    "32 times the sum of lane 0: nothing comes up to it. __shfl_down_sync brings what lies further up": first_lane,
    "32 times the sum of lane 31: nothing lies further up. Behind __shfl_down_sync lane 0 has the sum": last_lane(32),
    "lanes have elements in common: each goes on by 32": from_lane_on,
    "the upper 16 lanes are left out: begin with d = 16": lambda x, rows, columns: {"y": of_lanes(x, range(16))},
    "this is the sum of lane 0 alone": lambda x, rows, columns: {"y": of_lanes(x, [0])},
}
