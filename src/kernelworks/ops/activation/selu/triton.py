"""selu on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.activation import exp_less_one
from kernelworks.tile.exp import exp
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return tl.where(x > 0.0, 1.0507009873554805 * x, 1.7580993408473766 * exp_less_one(x))


@kernel
def gradient(grad, x):
    return tl.where(x <= 0.0, grad * (1.7580993408473766 * exp(x)), grad * 1.0507009873554805)


forward, backward = functions(__file__, value, gradient)
