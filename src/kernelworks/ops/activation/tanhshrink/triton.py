"""tanhshrink on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl  # noqa: F401  Triton's interpreter looks for it

from kernelworks.tile.activation import tanh
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return x - tanh(x)


@kernel
def gradient(grad, x):
    return grad * (tanh(x) * tanh(x))


forward, backward = functions(__file__, value, gradient)
