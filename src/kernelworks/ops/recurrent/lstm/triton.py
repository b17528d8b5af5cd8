"""lstm on the GPU: the cell that ``tile/recurrent.py`` puts behind the products of a step."""

import triton.language as tl  # noqa: F401  the interpreter looks for it here

from kernelworks.build.triton import configs, kernel
from kernelworks.tile.activation import sigmoid, tanh
from kernelworks.tile.recurrent import launches


@kernel
def _cell(x0, x1, x2, x3, h0, h1, h2, h3, h, c):
    c = sigmoid(x1 + h1) * c + sigmoid(x0 + h0) * tanh(x2 + h2)
    return sigmoid(x3 + h3) * tanh(c), c


forward = launches(_cell, 4, 2, configs(__file__))
