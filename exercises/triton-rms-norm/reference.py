"""y = x / sqrt(mean of squares + eps) * weight, of float16."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, Rows, random

BLOCK = 256
HALF_STEP, SMALLEST = 2.0**-11, 2.0**-25  # of float16: the relative error of a rounding, and below the normal numbers


def case(rows, columns, size=1.0, gaps=(0, 0), about="", **more):
    draw = random(rows * 1000 + columns)
    x = (draw.standard_normal((rows, columns)) * size + 0.5 * size).astype(np.float16)
    weight = draw.uniform(0.5, 2, columns).astype(np.float32)
    arrays = {"x": Rows(x, gaps[0]), "weight": weight, "y": Output((rows, columns), "float16", gaps[1]), "eps": 0.01}
    return Case(about or f"{rows} rows, {columns} columns", arrays, **more)


def cases():
    yield case(2, 256)
    yield case(2, 600)
    yield case(2, 300, gaps=(20, 4), about="2 rows of 300 columns, 320 and 304 elements apart")
    yield case(2, 512, size=300.0, about="numbers near 300")
    yield case(1, 2048, size=0.01, about="numbers near 0.01")
    yield case(3, 1)


def timed():
    rows, columns = 16384, 8192
    return case(rows, columns, flop=4.0 * rows * columns, bytes=4.0 * rows * columns)


def scaled(x, weight, squares, eps):
    return {"y": x / np.sqrt(squares + np.float32(eps)) * weight}


def squares(x):
    return (x**2).mean(axis=1, keepdims=True)


def reference(x, weight, y=None, eps=0.0):
    return scaled(x, weight, squares(x), eps)


# All that is added is positive: the sum of squares is off by a rounding for each element, its root by half of that.
# Eight more on the way, an approximate root among them; then the result is rounded to float16.
def bound(x, weight, eps):
    y = np.abs(reference(x, weight, eps=eps)["y"])
    return {"y": y * (HALF_STEP + (x.shape[1] / 2 + 8) * HALF_ULP) + SMALLEST}


def whole_blocks(x, weight, eps):
    columns = x.shape[1]
    return scaled(x, weight, squares(x) * columns / (-(-columns // BLOCK) * BLOCK), eps)


def last_block(x, weight, eps):
    columns = x.shape[1]
    rest = x[:, (columns - 1) // BLOCK * BLOCK :]
    return scaled(x, weight, (rest**2).sum(axis=1, keepdims=True) / columns, eps)


def half_squares(x, weight, eps):
    return scaled(x, weight, (x**2).astype(np.float16).astype(np.float64).mean(axis=1, keepdims=True), eps)


def first_block_again(x, weight, eps):
    columns = x.shape[1]
    total = sum((x[:, : min(BLOCK, columns)] ** 2).sum(axis=1, keepdims=True) for _ in range(-(-columns // BLOCK)))
    return scaled(x, weight, total / columns, eps)


def rest_left_out(x, weight, eps):
    columns = x.shape[1]
    return scaled(x, weight, (x[:, : columns // BLOCK * BLOCK] ** 2).sum(axis=1, keepdims=True) / columns, eps)


MISTAKES = {
    "eps is missing": lambda x, weight, eps: scaled(x, weight, squares(x), 0.0),
    "the first block is summed in every turn: offsets begin at start": first_block_again,
    "the mean divides by BLOCK, not by columns": lambda x, weight, eps: scaled(
        x, weight, squares(x) * x.shape[1] / BLOCK, eps
    ),
    "the last columns % 256 elements are not in the sum of squares": rest_left_out,
    "squares are taken in float16, where that of 300 is infinite: .to(tl.float32) comes first": half_squares,
    "the mean is over whole blocks: lanes that are off count as elements": whole_blocks,
    "only the row's last block is in the sum of squares: add to it, block by block": last_block,
    "eps is added outside the root": lambda x, weight, eps: {"y": x / (np.sqrt(squares(x)) + np.float32(eps)) * weight},
    "it divides by the root of the sum of squares, not by their mean": lambda x, weight, eps: scaled(
        x, weight, squares(x) * x.shape[1], eps
    ),
    "weight is not used": lambda x, weight, eps: scaled(x, 1.0, squares(x), eps),
}
