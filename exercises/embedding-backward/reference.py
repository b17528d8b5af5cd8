"""The gradient of a lookup."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(rows, d, ids, about, **more):
    ids = np.asarray(ids, np.int64)
    grad = random(rows).standard_normal((ids.size, d)).astype(np.float32)
    arrays = {"grad": grad, "ids": ids, "table_grad": Output((rows, d))}
    return Case(about, {**arrays, "count": ids.size, "rows": rows, "d": d}, **more)


def cases():
    yield case(5, 4, [3, 0, 4, 1], "5 rows, every id once")
    yield case(3, 7, [2, 2, 0, 2, 1, 0], "ids that repeat")
    yield case(4, 5, [1, -1, 3, -1], "ids of -1")
    yield case(6, 2, [], "no id: all is 0")


def timed():
    rows, d, count = 1024, 64, 1024
    ids = random(1).integers(0, rows, count)
    return case(rows, d, ids, f"{count} ids, {rows} rows, d = {d}", flop=count * d, bytes=4 * d * (count + rows))


def collected(grad, ids, rows, *, adding=True):
    found = np.zeros((rows, grad.shape[1]))
    kept = ids >= 0
    if adding:
        np.add.at(found, ids[kept], grad[kept])
    else:
        for at, row in zip(ids[kept], grad[kept], strict=True):
            found[at] = row
    return found


def reference(grad, ids, count, rows, d):
    return {"table_grad": collected(grad, ids, rows)}


def bound(grad, ids, count, rows, d):
    terms = np.bincount(ids[ids >= 0], minlength=rows)[:, None]
    return {"table_grad": terms * HALF_ULP * collected(np.abs(grad), ids, rows) + TINY}


MISTAKES = {
    "of several gradients for a row the last one wins: they must be added": lambda grad, ids, count, rows, d: {
        "table_grad": collected(grad, ids, rows, adding=False)
    },
    "gradients go to row t, not to row ids[t]": lambda grad, ids, count, rows, d: {
        "table_grad": collected(grad, np.where(ids < 0, -1, np.arange(count) % rows), rows)
    },
    "an id of 0 is taken for none: only -1 is": lambda grad, ids, count, rows, d: {
        "table_grad": collected(grad, np.where(ids == 0, -1, ids), rows)
    },
    "an id of -1 gives its gradient to row 0: it gives nothing": lambda grad, ids, count, rows, d: {
        "table_grad": collected(grad, np.maximum(ids, 0), rows)
    },
    "what comes after an id of -1 is left out: go on with the next one": lambda grad, ids, count, rows, d: {
        "table_grad": collected(grad, np.where(np.cumsum(ids < 0) > 0, -1, ids), rows)
    },
}
