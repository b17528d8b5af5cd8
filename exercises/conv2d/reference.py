"""A convolution of one picture."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, random


def case(channels, out, height, width, window, stride, pad, about, **more):
    draw = random(10 * height + width)
    shapes = ((channels, height, width), (out, channels, window, window), out)
    x, weight, bias = (draw.standard_normal(shape).astype(np.float32) for shape in shapes)
    size = ((height + 2 * pad - window) // stride + 1, (width + 2 * pad - window) // stride + 1)
    arrays = {"x": x, "weight": weight, "bias": bias, "y": Output((out, *size))}
    numbers = {"in": channels, "out": out, "height": height, "width": width}
    return Case(about, {**arrays, **numbers, "window": window, "stride": stride, "pad": pad}, **more)


def cases():
    yield case(2, 3, 5, 6, 3, 1, 1, "2 channels of 5 x 6, window 3, pad 1")
    yield case(1, 2, 7, 6, 3, 2, 1, "7 x 6, window 3, stride 2, pad 1")
    yield case(3, 1, 4, 4, 2, 1, 0, "3 channels of 4 x 4, window 2")
    yield case(2, 2, 3, 5, 1, 1, 0, "window 1")


def timed():
    channels, size = 8, 32
    flop = 2 * channels**2 * 9 * size**2
    about = f"{channels} channels of {size} x {size}, window 3, pad 1"
    return case(channels, channels, size, size, 3, 1, 1, about, flop=flop, bytes=8 * channels * size**2)


def convolved(x, weight, bias, stride, pad):
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    window = weight.shape[-1]
    rows, columns = (padded.shape[at] - window + 1 for at in (1, 2))
    total = np.zeros((len(weight), rows, columns))
    for p in range(window):
        for r in range(window):
            part = padded[:, p : p + rows, r : r + columns]
            total += np.tensordot(weight[:, :, p, r], part, 1)
    return bias[:, None, None] + total[:, ::stride, ::stride]


def reference(x, weight, bias, **sizes):
    return {"y": convolved(x, weight, bias, sizes["stride"], sizes["pad"])}


def bound(x, weight, bias, **sizes):
    size = convolved(np.abs(x), np.abs(weight), np.abs(bias), sizes["stride"], sizes["pad"])
    return {"y": (weight[0].size + 2) * HALF_ULP * size + TINY}


def without_stride(x, weight, bias, **sizes):
    found = convolved(x, weight, bias, 1, sizes["pad"])
    rows, columns = reference(x, weight, bias, **sizes)["y"].shape[1:]
    return {"y": found[:, :rows, :columns]}


def without_first(x, weight, bias, **sizes):
    cut = x.copy()
    cut[:, 0], cut[:, :, 0] = 0, 0
    return reference(cut, weight, bias, **sizes)


def flat(x, weight, bias, **sizes):
    """Places that are asked of the whole picture at once."""
    stride, pad, height, width = (sizes[name] for name in ("stride", "pad", "height", "width"))
    shape = reference(x, weight, bias, **sizes)["y"].shape
    c, p, r, i, j = np.indices((*weight.shape[1:], *shape[1:]))
    at = (i * stride - pad + p) * width + j * stride - pad + r
    inside = (at >= 0) & (at < height * width)
    picture = np.where(inside, x.reshape(len(x), -1)[c, np.where(inside, at, 0)], 0)
    return {"y": bias[:, None, None] + np.tensordot(weight, picture, 3)}


def looked_up(x, weight, bias, sizes, place):
    """The result where ``place`` says row and column of the picture for (p, r, i, j)."""
    shape = reference(x, weight, bias, **sizes)["y"].shape
    c, p, r, i, j = np.indices((*weight.shape[1:], *shape[1:]))
    row, column = place(p, r, i, j)
    inside = (row >= 0) & (row < sizes["height"]) & (column >= 0) & (column < sizes["width"])
    picture = np.where(inside, x[c, np.clip(row, 0, sizes["height"] - 1), np.clip(column, 0, sizes["width"] - 1)], 0)
    return {"y": bias[:, None, None] + np.tensordot(weight, picture, 3)}


def unpadded(x, weight, bias, **sizes):
    stride = sizes["stride"]
    return looked_up(x, weight, bias, sizes, lambda p, r, i, j: (i * stride + p, j * stride + r))


def spread(x, weight, bias, **sizes):
    stride, pad = sizes["stride"], sizes["pad"]
    return looked_up(x, weight, bias, sizes, lambda p, r, i, j: ((i + p) * stride - pad, (j + r) * stride - pad))


MISTAKES = {
    "the result is the bias alone": lambda x, weight, bias, **sizes: {
        "y": np.broadcast_to(bias[:, None, None], reference(x, weight, bias, **sizes)["y"].shape)
    },
    "stride is not used": without_stride,
    "the window is turned round": lambda x, weight, bias, **sizes: reference(
        x, weight[:, :, ::-1, ::-1], bias, **sizes
    ),
    "only the last channel is in the sum": lambda x, weight, bias, **sizes: reference(
        x[-1:], weight[:, -1:], bias, **sizes
    ),
    "every channel gets bias[0]": lambda x, weight, bias, **sizes: reference(x, weight, 0 * bias + bias[0], **sizes),
    "the first row and column of the picture are taken for outside": without_first,
    "rows run into each other: left of row 3 is nothing, not the end of row 2": flat,
    "the bias is not used": lambda x, weight, bias, **sizes: reference(x, weight, 0 * bias, **sizes),
    "the bias is added for each input channel: once for a result": lambda x, weight, bias, **sizes: reference(
        x, weight, len(x) * bias, **sizes
    ),
    "rows and columns of the window are exchanged in weight": lambda x, weight, bias, **sizes: reference(
        x, weight.swapaxes(2, 3), bias, **sizes
    ),
    "every input channel takes channel 0 of the picture": lambda x, weight, bias, **sizes: reference(
        np.broadcast_to(x[:1], x.shape), weight, bias, **sizes
    ),
    "every input channel takes the weights of channel 0": lambda x, weight, bias, **sizes: reference(
        x, np.broadcast_to(weight[:, :1], weight.shape), bias, **sizes
    ),
    "the sum goes on from pixel to pixel: it begins with bias[o] for each": lambda x, weight, bias, **sizes: {
        "y": (lambda part: bias[:, None, None] + np.cumsum(part.reshape(len(part), -1), axis=1).reshape(part.shape))(
            reference(x, weight, 0 * bias, **sizes)["y"]
        )
    },
    "the window begins at the pixel, as if nothing were padded before it": unpadded,
    "the window is spread by stride: only the pixel is multiplied by it": spread,
}
