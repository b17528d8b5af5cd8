"""Rotary position embedding of queries and keys, in place, with a table."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, State, random

Q_TURNED = "q is taken for heads x length x d: head h of row i begins at (i * heads + h) * d"
BOTH_TURNED = "q and k are taken for heads x length x d: head h of row i begins at (i * heads + h) * d"
FIRST_SIGN = "the sign of the sine in the first half: x[c] cos - x[c + d/2] sin"
SECOND_SIGN = "the sign of the sine in the second half: x[c + d/2] cos + x[c] sin"


def case(length, heads, kv_heads, d, about, **more):
    draw = random(10 * length + d)
    q, k = (draw.standard_normal((length, h, d)).astype(np.float32) for h in (heads, kv_heads))
    # Row 0 turns too: else who takes it for every row leaves all as it was.
    angle = (3 + np.arange(length)[:, None]) * 10000.0 ** (-2 * np.arange(d // 2) / d)
    arrays = {"q": State(q), "k": State(k), "cosine": np.cos(angle).astype(np.float32)}
    arrays["sine"] = np.sin(angle).astype(np.float32)
    return Case(about, {**arrays, "length": length, "heads": heads, "kv_heads": kv_heads, "d": d}, **more)


def cases():
    yield case(4, 2, 2, 8, "4 rows, 2 heads, d = 8")
    yield case(3, 4, 1, 6, "3 rows, 4 heads, 1 of keys, d = 6")
    yield case(1, 1, 1, 2, "one row")


def timed():
    length, heads, kv_heads, d = 64, 8, 2, 64
    count = length * (heads + kv_heads) * d
    return case(length, heads, kv_heads, d, f"{length} rows, {heads} + {kv_heads} heads, d = {d}",
                flop=3 * count, bytes=8 * count)  # fmt: skip


def rotate(x, cosine, sine):
    first, second = np.split(x, 2, axis=2)
    cosine, sine = cosine[:, None], sine[:, None]
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=2)


def reference(q, k, cosine, sine, length, heads, kv_heads, d):
    return {"q": rotate(q, cosine, sine), "k": rotate(k, cosine, sine)}


def bound(q, k, cosine, sine, length, heads, kv_heads, d):
    def of(x):
        size = np.abs(x[..., : d // 2]) + np.abs(x[..., d // 2 :])
        return 3 * HALF_ULP * np.concatenate((size, size), axis=2) + TINY

    return {"q": of(q), "k": of(k)}


def too_early(x, cosine, sine):
    first, second = np.split(x, 2, axis=2)
    cosine, sine = cosine[:, None], sine[:, None]
    first = first * cosine - second * sine
    return np.concatenate((first, second * cosine + first * sine), axis=2)


def by_head(x, cosine, sine):
    rows = np.arange(x.shape[1]) % len(cosine)
    first, second = np.split(x, 2, axis=2)
    cosine, sine = cosine[rows][None], sine[rows][None]
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=2)


def by_rows_of_heads(x, cosine, sine):
    """The array taken for heads x length x d."""
    length, heads, d = x.shape
    turned = rotate(x.reshape(heads, length, d).swapaxes(0, 1), cosine, sine)
    return turned.swapaxes(0, 1).reshape(x.shape)


def row_0(table):
    return np.broadcast_to(table[:1], table.shape)


def signed(x, cosine, sine, first, second):
    one, other = np.split(x, 2, axis=2)
    cosine, sine = cosine[:, None], sine[:, None]
    return np.concatenate((one * cosine + first * other * sine, other * cosine + second * one * sine), axis=2)


MISTAKES = {
    "the second number of a pair is computed after the first was overwritten": (
        lambda q, k, cosine, sine, length, heads, kv_heads, d: {
            "q": too_early(q, cosine, sine), "k": too_early(k, cosine, sine)}
    ),
    "k stays as it was": lambda q, k, cosine, sine, length, heads, kv_heads, d: {"q": rotate(q, cosine, sine), "k": k},
    "the angle depends on the position, not on the head": lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": by_head(q, cosine, sine), "k": rotate(k, cosine, sine)
    },
    "it turns the other way": lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": rotate(q, cosine, -sine), "k": rotate(k, cosine, -sine)
    },
    "every row of q is turned by row 0 of the table": lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": rotate(q, row_0(cosine), row_0(sine)), "k": rotate(k, cosine, sine)
    },
    "every row of k is turned by row 0 of the table": lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": rotate(q, cosine, sine), "k": rotate(k, row_0(cosine), row_0(sine))
    },
    "every row is turned by row 0 of the table": lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": rotate(q, row_0(cosine), row_0(sine)), "k": rotate(k, row_0(cosine), row_0(sine))
    },
    Q_TURNED: lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": by_rows_of_heads(q, cosine, sine), "k": rotate(k, cosine, sine)
    },
    BOTH_TURNED: lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": by_rows_of_heads(q, cosine, sine), "k": by_rows_of_heads(k, cosine, sine)
    },
    FIRST_SIGN: lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": signed(q, cosine, sine, 1, 1), "k": signed(k, cosine, sine, 1, 1)
    },
    SECOND_SIGN: lambda q, k, cosine, sine, length, heads, kv_heads, d: {
        "q": signed(q, cosine, sine, -1, -1), "k": signed(k, cosine, sine, -1, -1)
    },
}  # fmt: skip
