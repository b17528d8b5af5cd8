"""tanh on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.activation import tanh
from kernelworks.tile.exp import exp
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return tanh(x)


@kernel
def gradient(grad, x):
    e = exp(-2.0 * tl.abs(x))
    return grad * (4.0 * (e / (1.0 + e)) / (1.0 + e))


forward, backward = functions(__file__, value, gradient)
