"""y = silu(gate) * value, gates and values side by side in a row."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, Rows, random


def case(rows, n, gaps=(0, 0), about="", **more):
    x = random(rows * 1000 + n).standard_normal((rows, 2 * n)).astype(np.float32)
    arrays = {"x": Rows(x, gaps[0]), "y": Output((rows, n), gap=gaps[1])}
    return Case(about or f"{rows} rows, n = {n}", arrays, **more)


def wide():
    gates = np.array([[-100.0, -88.5, -30.0, -1.0, 0.0, 1.0, 30.0, 89.0, 200.0]])
    values = np.linspace(-2, 2, 9)[None]
    x = np.concatenate([gates, values], axis=1).astype(np.float32)
    return Case("gates from -100 to 200", {"x": Rows(x, 0), "y": Output((1, 9))})


def cases():
    yield case(2, 256)
    yield case(3, 600)
    yield case(2, 37, gaps=(6, 3), about="2 rows of 74 columns, 80 elements apart; rows of y 40 apart")
    yield wide()


def timed():
    rows, n = 16384, 11008
    return case(rows, n, flop=5.0 * rows * n, bytes=12.0 * rows * n)


def halves(x):
    n = x.shape[1] // 2
    return x[:, :n], x[:, n:]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(x):
    gate, value = halves(x)
    return {"y": gate * sigmoid(gate) * value}


# The exponential is within 2 units in the last place (4 half ones), the sum rounds once, a GPU's division is within 2
# units, the product rounds once. Where exp(-gate) is infinite in float32, silu is below 2^-120 in size.
def bound(x):
    _, value = halves(x)
    return {"y": 10 * HALF_ULP * np.abs(reference(x)["y"]) + 2.0**-120 * (1 + np.abs(value))}


def exchanged(x):
    gate, value = halves(x)
    return {"y": value * sigmoid(value) * gate}


def sigmoid_gate(x):
    gate, value = halves(x)
    return {"y": sigmoid(gate) * value}


def alternating(x):
    gate, value = x[:, ::2], x[:, 1::2]
    return {"y": gate * sigmoid(gate) * value}


def turned_sign(x):
    gate, value = halves(x)
    return {"y": gate * sigmoid(-gate) * value}


MISTAKES = {
    "gates and values do not alternate: the first n of a row are gates, the n behind them values": alternating,
    "the exponential is that of -g: silu(g) = g / (1 + exp(-g))": turned_sign,
    "this is gate * value, without silu": lambda x: {"y": halves(x)[0] * halves(x)[1]},
    "the first half of a row are the gates, the second the values: here it is the other way round": exchanged,
    "the gate is sigmoid(g), not silu(g) = g sigmoid(g)": sigmoid_gate,
    "y is the gate, as in the starting file": lambda x: {"y": halves(x)[0]},
}
