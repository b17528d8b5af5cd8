"""gru on the GPU: the cell that ``tile/recurrent.py`` puts behind the products of a step."""

import triton.language as tl  # noqa: F401  the interpreter looks for it here

from kernelworks.build.triton import configs, kernel
from kernelworks.tile.activation import sigmoid, tanh
from kernelworks.tile.recurrent import launches


@kernel
def _cell(x0, x1, x2, x3, h0, h1, h2, h3, h, c):
    z = sigmoid(x1 + h1)
    return (1.0 - z) * tanh(x2 + sigmoid(x0 + h0) * h2) + z * h, c


forward = launches(_cell, 3, 1, configs(__file__))
