"""Rows of a table by number."""

import numpy as np

from kernelworks.learn.case import Case, Output, random


def case(rows, d, ids, about, **more):
    table = random(rows).standard_normal((rows, d)).astype(np.float32)
    ids = np.asarray(ids, np.int64)
    arrays = {"table": table, "ids": ids, "out": Output((ids.size, d))}
    return Case(about, {**arrays, "count": ids.size, "rows": rows, "d": d}, **more)


def cases():
    yield case(5, 4, [3, 0, 4, 1], "5 rows, d = 4")
    yield case(3, 7, [2, 2, 0, 2, 1], "ids that repeat, d = 7")
    yield case(300, 3, [299, 1, 256, 255], "300 rows")
    yield case(4, 5, [1, -1, 3, 0, -1], "ids of -1")
    yield case(1, 1, [0], "one row")


def timed():
    rows, d, count = 4096, 64, 1024
    ids = random(1).integers(0, rows, count)
    return case(rows, d, ids, f"{count} of {rows} rows, d = {d}", bytes=8 * count * d + 8 * count)


def chosen(table, ids):
    return {"out": np.where(ids[:, None] < 0, 0, table[np.maximum(ids, 0)])}


def reference(table, ids, count, rows, d):
    return chosen(table, ids)


def bound(table, ids, count, rows, d):
    return {"out": np.zeros((count, d))}


MISTAKES = {
    "row t of the table is taken, not row ids[t]": lambda table, ids, count, rows, d: chosen(
        table, np.arange(count) % rows
    ),
    "row t of the table is taken where ids[t] says a row": lambda table, ids, count, rows, d: chosen(
        table, np.where(ids < 0, -1, np.arange(count) % rows)
    ),
    "the id is cut to 8 bits: rows from 256 on are not found": lambda table, ids, count, rows, d: chosen(
        table, np.where(ids < 0, ids, ids & 255)
    ),
    "an id of 0 is taken for none: only -1 is": lambda table, ids, count, rows, d: chosen(
        table, np.where(ids == 0, -1, ids)
    ),
    "an id of -1 takes the last row, as in Python: here it gives 0": lambda table, ids, count, rows, d: {
        "out": table[ids]
    },
    "an id of -1 takes row 0: it gives 0": lambda table, ids, count, rows, d: chosen(table, np.maximum(ids, 0)),
}
