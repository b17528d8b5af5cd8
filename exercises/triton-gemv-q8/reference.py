"""y[i] = sum of scales[i, j // 32] codes[i, j] x[j]."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, Rows, random

BLOCK = 128


def case(rows, columns, gap=0, about="", **more):
    draw = random(rows * 1000 + columns)
    codes = draw.integers(-127, 128, (rows, columns)).astype(np.int8)
    scales = draw.uniform(0.001, 0.1, (rows, columns // 32)).astype(np.float16)
    x = draw.standard_normal(columns).astype(np.float32)
    arrays = {"codes": Rows(codes, gap), "scales": scales, "x": x, "y": Output(rows)}
    return Case(about or f"{rows} rows, {columns} columns", arrays, **more)


def cases():
    yield case(3, 128)
    yield case(4, 256)
    yield case(2, 32)
    yield case(2, 160, gap=32, about="2 rows of 160 columns, 192 elements apart")
    yield case(1, 992)


def timed():
    rows, columns = 4096, 4096
    return case(rows, columns, flop=2.0 * rows * columns, bytes=(1 + 1 / 16) * rows * columns)


def weights(codes, scales):
    return codes * np.repeat(scales, 32, axis=1)


def reference(codes, scales, x):
    return {"y": weights(codes, scales) @ x}


# Codes and scales are exact in float32, their product too (8 and 11 bits). The product with x rounds once, each
# addition once.
def bound(codes, scales, x):
    return {"y": (len(x) + 3) * HALF_ULP * (np.abs(weights(codes, scales)) @ np.abs(x)) + TINY}


def unsigned(codes, scales, x):
    return reference(codes.astype(np.int8).view(np.uint8).astype(np.int64), scales, x)


def of_columns(first, end):
    def compute(codes, scales, x):
        part = slice(first(len(x)), end(len(x)))
        return {"y": weights(codes, scales)[:, part] @ x[part]}

    return compute


MISTAKES = {
    "y is 0, as in the starting file": lambda codes, scales, x: {"y": np.zeros(len(codes))},
    "every block of a row has the scale of the first": lambda codes, scales, x: reference(
        codes, np.repeat(scales[:, :1], scales.shape[1], axis=1), x
    ),
    "negative codes count as 256 more: they are signed": unsigned,
    "only the last 128 or fewer columns are in the sum: add to total": of_columns(
        lambda n: (n - 1) // BLOCK * BLOCK, lambda n: n
    ),
    "the last columns, which fill no block of 128, are not in the sum": of_columns(
        lambda n: 0, lambda n: n // BLOCK * BLOCK
    ),
}
