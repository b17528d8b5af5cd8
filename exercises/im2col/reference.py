"""The windows of a picture as columns."""

import numpy as np

from kernelworks.learn.case import Case, Output, random

ROWS_OF_WINDOW = "the place in the window is turned over: p goes down the rows, r along the columns"
ROWS_OF_PIXELS = "the output pixel is turned over: i goes down the rows, j along the columns"
PAD_ADDED = "pad is added: the window begins pad before the pixel, so it is subtracted"
NO_FIRST = "row 0 and column 0 of the picture are taken for outside: 0 <= row, 0 <= column"


def sizes(height, width, window, pad):
    return height + 2 * pad - window + 1, width + 2 * pad - window + 1


def case(channels, height, width, window, pad, about, **more):
    x = random(10 * height + width).standard_normal((channels, height, width)).astype(np.float32)
    columns = Output((channels * window**2, int(np.prod(sizes(height, width, window, pad)))))
    arrays = {"x": x, "columns": columns, "channels": channels, "height": height, "width": width}
    return Case(about, {**arrays, "window": window, "pad": pad}, **more)


def cases():
    yield case(2, 5, 6, 3, 1, "2 channels of 5 x 6, window 3, pad 1")
    yield case(1, 4, 7, 3, 0, "4 x 7, window 3, no pad")
    yield case(1, 7, 4, 1, 0, "7 x 4, window 1")
    yield case(3, 4, 3, 2, 1, "3 channels of 4 x 3, window 2, pad 1")


def timed():
    channels, size, window = 16, 32, 3
    count = channels * window**2 * size**2
    about = f"{channels} channels of {size} x {size}, window 3, pad 1"
    return case(channels, size, size, window, 1, about, bytes=4 * (count + channels * size**2))


def windows(x, window, pad):
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    _, height, width = padded.shape
    out = height - window + 1, width - window + 1
    parts = [padded[:, p : p + out[0], r : r + out[1]] for p in range(window) for r in range(window)]
    return np.stack(parts, axis=1).reshape(-1, out[0] * out[1])


def reference(x, channels, height, width, window, pad):
    return {"columns": windows(x, window, pad)}


def bound(x, channels, height, width, window, pad):
    return {"columns": np.zeros_like(windows(x, window, pad))}


def turned(x, channels, height, width, window, pad):
    found = windows(x, window, pad).reshape(channels, window**2, -1)
    return {"columns": found[:, ::-1].reshape(channels * window**2, -1)}


def flat(x, channels, height, width, window, pad):
    """Places that are asked of the whole picture at once."""
    rows, columns = sizes(height, width, window, pad)
    found = np.zeros((channels, window, window, rows, columns))
    c, p, r, i, j = np.indices(found.shape)
    at = (i + p - pad) * width + j + r - pad
    inside = (at >= 0) & (at < height * width)
    found = np.where(inside, x.reshape(channels, -1)[c, np.where(inside, at, 0)], 0)
    return {"columns": found.reshape(channels * window**2, -1)}


def unpadded(x, channels, height, width, window, pad):
    moved = np.pad(x, ((0, 0), (0, 2 * pad), (0, 2 * pad)))
    return {"columns": windows(moved, window, 0)}


def looked_up(x, window, pad, place):
    """Elements of the picture where ``place`` says row, column and channel of (c, p, r, i, j); 0 outside."""
    channels, height, width = x.shape
    rows, columns = sizes(height, width, window, pad)
    at = np.indices((channels, window, window, rows, columns))
    c, row, column = place(*at)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    found = np.where(inside, x[c, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)], 0)
    return {"columns": found.reshape(channels * window**2, -1)}


def without_edge(x, channels, height, width, window, pad, rows, columns):
    cut = x.copy()
    cut[:, :rows], cut[:, :, :columns] = 0, 0
    return {"columns": windows(cut, window, pad)}


def strided_by_height(x, channels, height, width, window, pad):
    flat_x = x.reshape(channels, -1)
    index = np.arange(height)[:, None] * height + np.arange(width)
    return {"columns": windows(flat_x[:, index % flat_x.shape[1]], window, pad)}


def clamped(x, channels, height, width, window, pad):
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)), mode="edge")
    return {"columns": windows(padded, window, 0)}


MISTAKES = {
    "every element is 0": lambda x, channels, height, width, window, pad: {"columns": 0 * windows(x, window, pad)},
    "rows run into each other: left of row 3 is nothing, not the end of row 2": flat,
    "the window is turned round": turned,
    "the window begins at the pixel, as if nothing were padded before it": unpadded,
    "every channel takes channel 0 of the picture": lambda x, channels, height, width, window, pad: {
        "columns": windows(np.broadcast_to(x[:1], x.shape), window, pad)
    },
    ROWS_OF_WINDOW: lambda x, channels, height, width, window, pad: looked_up(
        x, window, pad, lambda c, p, r, i, j: (c, i + r - pad, j + p - pad)
    ),
    ROWS_OF_PIXELS: lambda x, channels, height, width, window, pad: looked_up(
        x, window, pad, lambda c, p, r, i, j: (c, j + p - pad, i + r - pad)
    ),
    PAD_ADDED: lambda x, channels, height, width, window, pad: looked_up(
        x, window, pad, lambda c, p, r, i, j: (c, i + p + pad, j + r + pad)
    ),
    "row 0 of the picture is taken for outside: 0 <= row": lambda x, channels, height, width, window, pad: without_edge(
        x, channels, height, width, window, pad, 1, 0
    ),
    "column 0 of the picture is taken for outside: 0 <= column": lambda x, channels, height, width, window, pad: (
        without_edge(x, channels, height, width, window, pad, 0, 1)
    ),
    NO_FIRST: lambda x, channels, height, width, window, pad: without_edge(
        x, channels, height, width, window, pad, 1, 1
    ),
    "the edge of the picture is repeated outside: there it is 0": clamped,
    "rows of the picture are taken height apart: they lie width apart": strided_by_height,
}
