"""sigmoid on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl  # noqa: F401  Triton's interpreter looks for it

from kernelworks.tile.activation import sigmoid
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return sigmoid(x)


@kernel
def gradient(grad, x):
    return grad * (sigmoid(x) * sigmoid(-x))


forward, backward = functions(__file__, value, gradient)
